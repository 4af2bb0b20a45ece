"""KD-DPFL's arithmetic: ε_total = ε_label + ε_s + what a large client spends by joining."""

import pytest

from murmur.algorithms.kd_dpfl.budget import Grouping, Plan, Spending, left_for_labels
from murmur.privacy.budget import Budget

SIZES = [900, 10, 10]


def plan(total, **asked):
    return Plan.of(Budget(total, 1e-5), SIZES, Grouping(), Spending(**asked))


def test_conservative_budget():
    it = plan(8.0, general_epsilon=[3.0, 2.0])
    assert (it.special, it.label, it.general) == (4.5, {0: 3.5}, {1: 3.0, 2: 2.0})
    assert it.total == max(*it.general.values(), it.sum_of(0))


def test_tight_budget_spends_nothing_on_the_special_client():
    it = plan(8.0, mode="tight", general_epsilon=3.0)
    assert (it.special, it.label, it.sum_of(0)) == (0.0, {0: 8.0}, 8.0)


def test_joining_the_federated_stage_is_sequential():
    assert plan(8.0, general_epsilon=2.0, joining=True).label == {0: 3.0}
    assert plan(8.0, general_epsilon=2.0, joining=True, mode="tight").label == {0: 6.0}


@pytest.mark.parametrize(
    ("total", "asked", "message"),
    [
        (8.0, {"general_epsilon": 6.0}, "^total=8.0: leaves -1 for the labels"),
        (4.0, {"general_epsilon": 6.0}, "^general=.*at most the total"),
        (8.0, {"ratio": 0.5}, "^ratio=0.5: "),
        (8.0, {"general_epsilon": 0.0}, "^general_epsilon="),
    ],
)
def test_impossible_budgets_are_refused(total, asked, message):
    with pytest.raises(ValueError, match=message):
        plan(total, **asked)


def test_labels_need_what_joining_leaves():
    with pytest.raises(ValueError, match=r"^total=2.0: "):
        left_for_labels(2.0, 0.0, joining=2.0)
