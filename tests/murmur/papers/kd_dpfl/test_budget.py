import pytest

from murmur.papers.kd_dpfl import budget as shares


def test_conservative_budget():
    budget = shares.conservative(8.0, [3.0, 2.0], 1.5)
    assert (budget.special, budget.label, budget.large, budget.total) == (4.5, 3.5, 8.0, 8.0)
    assert budget.total == max(*budget.general, budget.large)


def test_tight_budget_spends_nothing_on_the_special_client():
    budget = shares.tight(8.0, [3.0])
    assert (budget.special, budget.label, budget.large) == (0.0, 8.0, 8.0)


def test_joining_the_federated_stage_is_sequential():
    assert shares.conservative(8.0, [2.0], 1.5, joining=2.0).label == 3.0
    assert shares.tight(8.0, [2.0], joining=2.0).label == 6.0


@pytest.mark.parametrize(
    ("total", "general", "ratio", "message"),
    [
        (8.0, [6.0], 1.5, "^total=8.0: leaves -1 for the labels"),
        (4.0, [6.0], 1.5, "^general=.*none may exceed"),
        (8.0, [3.0], 0.5, "^ratio=0.5: "),
        (8.0, [], 1.5, "^general="),
        (8.0, [0.0], 1.5, "^general="),
        (float("inf"), [3.0], 1.5, "^total=inf: "),
    ],
)
def test_impossible_budgets_are_refused(total, general, ratio, message):
    with pytest.raises(ValueError, match=message):
        shares.conservative(total, general, ratio)


def test_a_tight_budget_must_exceed_joining():
    with pytest.raises(ValueError, match=r"^total=2.0: "):
        shares.tight(2.0, [1.0], joining=2.0)
    with pytest.raises(ValueError, match=r"^joining=-1.0: "):
        shares.tight(2.0, [1.0], joining=-1.0)
