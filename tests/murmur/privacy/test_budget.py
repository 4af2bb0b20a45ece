"""A budget is spent, and not exceeded, whatever a participation releases and however often."""

import pytest

from murmur.privacy.accounting import epsilon
from murmur.privacy.budget import Budget
from murmur.privacy.events import DiscreteGaussianEvent, RepeatedEvent
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse


def labels(count):
    return lambda each: RandomizedResponse(each / count, 10).release(count)


def noise(each):
    return DiscreteGaussianEvent(2.0**20 / each, 2.0**18)


@pytest.mark.parametrize("event", [labels(1), labels(16), labels(64), noise])
@pytest.mark.parametrize(("rounds", "participations"), [(1, None), (60, None), (60, 5)])
def test_a_runs_budget_is_met_to_a_thousandth(event, rounds, participations):
    budget = Budget(8.0, 1e-5, rounds, participations=participations)
    each = budget.per_round(event)
    spent = epsilon(RepeatedEvent(event(each), budget.releases), 1e-5, assumptions=None).epsilon
    assert 0.999 * 8.0 < spent <= 8.0


def test_without_a_delta_a_runs_budget_is_shared_evenly():
    each = Budget(8.0, 0.0, 40).per_round(labels(4))
    assert each == pytest.approx(0.2, rel=1e-6) and each <= 0.2


def test_a_rounds_budget_is_the_participations_own():
    assert Budget(8.0, 1e-5, 9, paper_semantics=True).per_round(labels(16)) == 8.0
