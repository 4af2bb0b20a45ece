"""KD-DPFL's arithmetic: grouping, who gets what, what a path costs, what is refused."""

import math

import pytest

from murmur.algorithms.dpsgd import LocalDpSgd, Lots
from murmur.algorithms.kd_dpfl.budget import Grouping, Plan, Scheme, Sections, Spending, Uploads
from murmur.algorithms.kd_dpfl.labels import Labelling
from murmur.privacy.accounting import epsilon
from murmur.privacy.budget import Budget
from murmur.privacy.events import ComposedEvent, NonPrivateEvent, RepeatedEvent

SIZES = [6000] * 5 + [500] * 40
LABELLING = {"mechanism": "dpsgd_teacher", "queries": None, "epochs": 20, "lot_size": 250}


def scheme(
    total=8.0,
    sizes=SIZES,
    spending=None,
    labelling=None,
    rounds=30,
    uploads="dpsgd",
    **grouping,
):
    return Scheme.of(
        Budget(total, 1e-5, rounds, paper_semantics=True),
        sizes,
        Sections(
            grouping=Grouping(**grouping),
            spending=Spending(**{"general_epsilon": 3.0, **(spending or {})}),
            labelling=Labelling(**{**LABELLING, **(labelling or {})}),
            local=LocalDpSgd(lot_size=50, epochs=1, clipping_norm=1.0, learning_rate=0.5),
            uploads=Uploads(noise=uploads, clip=1.0),
        ),
        Lots(lot_size=250, epochs=1),
        classes=10,
        pool=5000,
    )


def plan_of(sizes, large, **needs):
    return Plan.of(Budget(8.0, 1e-5), sizes, Grouping(top_k=large), Spending(**needs))


def test_large_is_five_times_the_median():
    assert Grouping().large([10, 50, 10, 49, 10]) == (1,)
    assert Grouping(factor=4.9).large([10, 50, 10, 49, 10]) == (1, 3)
    assert Grouping().large([10] * 4) == ()


def test_top_k_takes_the_largest_and_the_lower_id_of_equals():
    assert Grouping(top_k=2).large([5, 9, 9, 9, 1]) == (1, 2)
    assert Grouping(top_k=0).large([5, 9]) == ()
    with pytest.raises(ValueError, match=r"^top_k=3: "):
        Grouping(top_k=3).large([1, 2])
    with pytest.raises(ValueError, match=r"^factor=0: "):
        Grouping(factor=0)


def test_conservative_plan_of_the_specification():
    plan = scheme().plan
    assert plan.large == (0, 1, 2, 3, 4)
    assert plan.special == 4.5
    assert set(plan.label.values()) == {3.5}
    assert plan.general == dict.fromkeys(range(5, 45), 3.0)
    assert (plan.sum_of(0), plan.sum_of(7)) == (8.0, 3.0)


def test_tight_plan_needs_nothing_for_the_special_client():
    built = scheme(spending={"mode": "tight", "general_epsilon": None})
    assert built.plan.special == 0
    assert built.special_event() is None
    assert set(built.plan.label.values()) == set(built.plan.general.values()) == {8.0}


def test_a_path_composes_in_renyi_terms_to_less_than_its_sum_but_more_than_its_parts():
    built = scheme()
    spent = epsilon(built.whole_path(0), 1e-5).epsilon
    assert 4.5 < spent < 8.0
    assert epsilon(built.whole_path(9), 1e-5).epsilon == pytest.approx(3.0, rel=1e-5)


def test_uploads_may_be_noised_models():
    built = scheme(uploads="nbafl")
    assert epsilon(built.whole_path(9), 1e-5).epsilon == pytest.approx(3.0, rel=1e-4)
    assert "noise on the model" in built.uploads.describe(3.0, 1e-5, 500)


def test_joining_adds_the_own_uploads_to_a_large_clients_path():
    built = scheme(spending={"joining": True, "general_epsilon": 2.0})
    assert set(built.plan.label.values()) == {3.0}
    assert len(built.plan.general) == 45
    assert built.plan.sum_of(0) == 8.0
    parts = built.whole_path(0).events
    assert parts[-1] == RepeatedEvent(built.upload_event(0), 30)
    assert (
        epsilon(ComposedEvent(parts[:-1]), 1e-5).epsilon
        < epsilon(built.whole_path(0), 1e-5).epsilon
    )


def test_budgets_by_client_by_list_and_by_size():
    needs = {"general_epsilon": [1.0, 2.0, 3.0], "label_epsilon": [3.0, 1.0]}
    plan = plan_of([600, 10, 20, 700, 30], 2, **needs)
    assert plan.general == {1: 1.0, 2: 2.0, 4: 3.0}
    assert plan.label == {0: 3.0, 3: 1.0}
    assert plan.special == 4.5
    by_size = plan_of([600, 10, 20, 40], 1, general_epsilon=2.0, rule="by_size")
    assert by_size.general == {1: 0.5, 2: 1.0, 3: 2.0}


def test_controls_leave_out_what_they_name():
    alone = scheme(spending={"special": False, "general_epsilon": None}).plan
    assert (alone.label, alone.special, set(alone.general.values())) == ({}, 0.0, {8.0})
    student = scheme(spending={"general": False, "general_epsilon": None}).plan
    assert (student.general, student.special, set(student.label.values())) == ({}, 0.0, {8.0})


def test_without_protection_nothing_is_limited():
    built = scheme(total=math.inf, labelling={"mechanism": "none"})
    assert set(built.plan.general.values()) == {math.inf}
    assert NonPrivateEvent() in built.whole_path(0).events
    assert epsilon(built.whole_path(9), 1e-5).epsilon == math.inf


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"spending": {"general_epsilon": 6.0}}, r"^total=8.0: leaves -1 .* must exceed 9"),
        (
            {"spending": {"general_epsilon": 9.0}},
            "^general=.*must lie above 0 and at most the total 8",
        ),
        ({"spending": {"ratio": 0.9}}, r"^ratio=0\.9: "),
        ({"spending": {"mode": "loose"}}, "^mode='loose': .*tight"),
        ({"spending": {"rule": "random"}}, "^rule='random': "),
        ({"spending": {"label_epsilon": 4.0}}, r"^label_epsilon=.*at most 3\.5"),
        ({"spending": {"label_epsilon": [1.0]}}, "^label_epsilon=.*5 large"),
        (
            {"spending": {"label_epsilon": [1.0, math.nan, 1.0, 1.0, 1.0]}},
            "^label_epsilon=.*above 0",
        ),
        (
            {"spending": {"label_epsilon": [1.0, 1e-9, 1.0, 1.0, 1.0]}},
            "^label_epsilon=1e-09: cannot",
        ),
        ({"spending": {"general_epsilon": [1.0] * 39 + [math.nan]}}, "^general=.*above 0"),
        ({"spending": {"general_epsilon": [1.0]}}, "^general_epsilon=.*40 clients"),
        ({"spending": {"special": False, "general": False}}, "^special=False: "),
        ({"factor": 50.0}, "^large="),
        ({"labelling": {"mechanism": "none"}}, "^labelling.mechanism='none': .*privacy=none"),
        ({"labelling": {"mechanism": "guess"}}, "^mechanism='guess': "),
        ({"labelling": {"queries": 5001}}, r"^labelling.queries=5001: must lie in 1\.\.5000"),
        ({"labelling": {"mechanism": "pate", "teachers": 9}}, "^labelling.teachers=9: .*only 45"),
        ({"labelling": {"noise": "uniform"}}, "^noise='uniform': "),
        ({"uploads": "laplace"}, "^noise='laplace': "),
    ],
)
def test_impossible_needs_are_refused_and_the_binding_term_named(settings, message):
    with pytest.raises(ValueError, match=message):
        scheme(**settings)


def test_every_client_large_leaves_nobody_to_train():
    with pytest.raises(ValueError, match=r"^general=true: "):
        plan_of([600, 700], 2)


@pytest.mark.parametrize("mechanism", ["dpsgd_teacher", "pate", "rr"])
def test_labels_cost_what_they_may_whatever_the_mechanism(mechanism):
    labelling = Labelling(mechanism, 40, 20, 250).over(40, 10, 1)
    spent = epsilon(labelling.event(3.5, 1e-5, 6000), 1e-5).epsilon
    assert 0.99 * 3.5 < spent <= 3.5 * (1 + 1e-6)
    assert labelling.describe(3.5, 1e-5, 6000)


def test_a_few_teachers_are_allowed_when_asked_for():
    assert Labelling("pate", 5, 1, 5, teachers=2, allow_few=True).over(5, 3, 1).teachers == 2


def test_randomised_labels_compose_over_the_public_samples():
    labelling = Labelling("rr", 100, 20, 250).over(100, 10, 1)
    each = labelling.randomiser(3.5, 1e-5).epsilon
    assert 3.5 / 100 < each < 0.2
