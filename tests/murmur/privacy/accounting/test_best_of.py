"""The best of a random number of runs costs what the paper's theorem says, and no less."""

import math
import random

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from murmur.privacy.accounting import best_of, epsilon
from murmur.privacy.accounting.best_of import draw_trials, epsilon_of_all, epsilon_of_best
from murmur.privacy.accounting.flatten import Threat, View
from murmur.privacy.events import (
    GaussianEvent,
    NonPrivateEvent,
    RandomizedResponseEvent,
    RepeatedEvent,
)

SEEN = View(Threat.CENTRAL, assumptions=None)
DELTA = 1e-5
ORDERS = [*np.exp(np.linspace(-3, 8, 800)) + 1]


@pytest.mark.parametrize("mean", [2, 10, 60])
@pytest.mark.parametrize("noise", [0.8, 2.0, 20.0])
def test_the_best_of_gaussian_runs_costs_what_dp_accounting_says(mean, noise):
    accountant = RdpAccountant(ORDERS, NeighboringRelation.REPLACE_ONE)
    one = dp_event.GaussianDpEvent(noise)
    accountant.compose(dp_event.RepeatAndSelectDpEvent(one, mean, 1))
    theirs = accountant.get_epsilon(DELTA)
    ours = epsilon_of_best([[GaussianEvent(noise)]], mean, DELTA, SEEN)
    assert ours == pytest.approx(theirs, rel=2e-3)
    assert ours <= theirs * (1 + 1e-9)  # which looks at fewer orders


def test_one_run_of_which_nothing_is_chosen_costs_what_it_costs():
    event = GaussianEvent(2.0)
    alone = epsilon(event, DELTA, Threat.CENTRAL, assumptions=None).bounds["rdp"]
    assert epsilon_of_best([[event]], 1, DELTA, SEEN) == pytest.approx(alone, rel=1e-5)


def test_golden_values():
    """dp-accounting 0.6.0 at 800 orders has 8.513568, 2.877203 and 16.272586."""
    runs = [[GaussianEvent(1.0)], [GaussianEvent(3.0)], [RepeatedEvent(GaussianEvent(1.0), 4)]]
    found = [epsilon_of_best([run], 10, DELTA, SEEN) for run in runs]
    assert found == pytest.approx([8.513468571, 2.877191901, 16.272468854], rel=1e-8)


def test_pure_runs_cost_three_times_one_at_most():
    """Corollary of the theorem for ε-DP: (2 + η) ε, whatever the number of runs."""
    for mean in (2, 50, 1e6):
        event = RandomizedResponseEvent(0.5, 10)
        assert epsilon_of_best([[event]], mean, 1e-300, SEEN) <= 1.5 * (1 + 1e-3)


def test_the_theorem_holds_for_runs_that_can_be_counted_out():
    """Runs that answer randomly, of which the largest answer is kept: the exact divergence."""
    epsilon, mean = 1.0, 5
    yes, no = math.exp(epsilon) / (1 + math.exp(epsilon)), 1 / (1 + math.exp(epsilon))

    def kept(chance):
        """Chance that the best of K answers is 1, each of which is with this ``chance``."""
        gamma = 1 / mean
        none = gamma * (1 - chance) / (1 - (1 - gamma) * (1 - chance))  # E[(1 − p)^K]
        return 1 - none

    def divergence(order):
        """The worse of both directions."""
        both = []
        for one, other in ((kept(yes), kept(no)), (kept(no), kept(yes))):
            moments = one**order * other ** (1 - order)
            moments += (1 - one) ** order * (1 - other) ** (1 - order)
            both.append(math.log(moments) / (order - 1))
        return max(both)

    def of_one(order):
        parts = [math.log(yes) * order + math.log(no) * (1 - order)]
        parts.append(math.log(no) * order + math.log(yes) * (1 - order))
        return float(np.logaddexp(*parts)) / (order - 1)

    cost = best_of.selection_cost(of_one, mean)
    for order in (1.01, 1.5, 2, 8, 100):
        bound = best_of.repeated_divergence(of_one, mean, order, cost)
        assert divergence(order) <= bound
    assert divergence(100) > 1.2 * of_one(100)  # the choice does cost something


def test_the_worst_settings_count_and_all_runs_compose():
    mild, strong = [GaussianEvent(5.0)], [GaussianEvent(1.0)]
    both = epsilon_of_best([mild, strong], 3, DELTA, SEEN)
    assert both == epsilon_of_best([strong], 3, DELTA, SEEN)
    assert both > epsilon_of_best([mild], 3, DELTA, SEEN)
    twice = epsilon_of_all([mild, mild], DELTA, SEEN)
    together = epsilon_of_all([[RepeatedEvent(GaussianEvent(5.0), 2)]], DELTA, SEEN)
    assert twice == pytest.approx(together)


def test_what_is_not_protected_has_no_epsilon():
    assert epsilon_of_best([[GaussianEvent(1.0)], [NonPrivateEvent()]], 3, DELTA, SEEN) == math.inf
    assert epsilon_of_all([[NonPrivateEvent()]], DELTA, SEEN) == math.inf


def test_the_number_of_trials_is_geometric(monkeypatch):
    state = random.Random(1)
    monkeypatch.setattr(best_of.secrets, "randbelow", state.randrange)
    drawn = np.array([draw_trials(6) for _ in range(20_000)])
    assert drawn.min() == 1 and drawn.mean() == pytest.approx(6, abs=4 * math.sqrt(30 / 20_000))
    assert np.mean(drawn == 1) == pytest.approx(1 / 6, abs=0.012)
    assert np.mean(drawn > 6) == pytest.approx((5 / 6) ** 6, abs=0.015)
    with pytest.raises(ValueError, match="mean=0"):
        draw_trials(0)
