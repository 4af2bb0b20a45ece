import math
from itertools import pairwise

import numpy as np
import pytest

from murmur.privacy.accounting import elementary_losses, epsilon, rdp
from murmur.privacy.events import ComposedEvent, LaplaceEvent, RepeatedEvent
from tests.murmur.privacy.accounting.true_delta import summed_delta

DELTA = 1e-5


@pytest.mark.parametrize(("per_round", "golden"), [(0.1, "5.30"), (0.5, "36.5"), (1.0, "98.0")])
def test_the_composition_of_the_evaluation_document(per_round, golden):
    total = rdp.epsilon_of_rho(100 * per_round**2 / 2, DELTA)
    assert f"{total:.{len(golden.partition('.')[2])}f}" == golden
    event = RepeatedEvent(LaplaceEvent(1 / per_round), 100)
    assert epsilon(event, DELTA).bounds["zcdp"] == pytest.approx(total)
    assert epsilon(event, DELTA).epsilon < 0.9 * total


def test_the_epsilon_of_the_document_is_that_of_an_accuracy():
    # Two disjoint probability vectors are at distance 2: the document's ε counts twice.
    assert epsilon(LaplaceEvent(1 / (2 * 230_260)), 0.0).epsilon == pytest.approx(460_520)


@pytest.mark.parametrize("steps", [1, 2, 7, 40])
@pytest.mark.parametrize("total", [0.0, 0.3, 1.4])
def test_discrete_noise_by_enumeration(steps, total):
    epsilon0, reach = 1.5, 4000
    x = np.arange(-reach, reach + 1)
    t = math.exp(-epsilon0 / steps)
    upper = (1 - t) / (1 + t) * t ** np.abs(x)
    lower = (1 - t) / (1 + t) * t ** np.abs(x - steps)
    exact = np.maximum(0, upper - math.exp(total) * lower).sum()
    part = elementary_losses.laplace_loss(LaplaceEvent(1 / epsilon0, steps))
    assert summed_delta([part], total) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("total", [0.0, 0.7, 1.9])
def test_continuous_noise_in_closed_form(total):
    part = elementary_losses.laplace_loss(LaplaceEvent(1 / 2.0, 0))
    assert part.probabilities.sum() == pytest.approx(1.0)
    closed = -math.expm1((total - 2.0) / 2)
    assert closed <= summed_delta([part], total) <= closed * (1 + 3e-4)


@pytest.mark.parametrize("count", [1, 30])
def test_dp_accounting_agrees_on_continuous_noise(count):
    from dp_accounting.pld import privacy_loss_distribution as pld

    library = pld.from_laplace_mechanism(2.0).self_compose(count).get_epsilon_for_delta(DELTA)
    ours = epsilon(RepeatedEvent(LaplaceEvent(2.0, 0), count), DELTA).epsilon
    assert ours == pytest.approx(library, rel=1e-4)


@pytest.mark.parametrize("count", [1, 30])
def test_dp_accounting_agrees_on_discrete_noise(count):
    from dp_accounting.pld import privacy_loss_distribution as pld

    library = pld.from_discrete_laplace_mechanism(0.125, 4, use_connect_dots=True)
    ours = epsilon(RepeatedEvent(LaplaceEvent(2.0, 4), count), DELTA).epsilon
    assert ours == pytest.approx(library.self_compose(count).get_epsilon_for_delta(DELTA), rel=1e-4)


@pytest.mark.parametrize("steps", [69, 0])
def test_laplace_noise_is_composed_exactly_where_delta_is_as_likely_as_the_worst_loss(steps):
    """All ten releases have the worst loss with probability 1/1000."""
    part = elementary_losses.laplace_loss(LaplaceEvent(16.0, steps))
    masses = np.ones(1)
    for _ in range(10):
        masses = np.convolve(masses, part.probabilities)
    losses = part.step * (10 * part.lowest + np.arange(masses.size))
    stated = epsilon(RepeatedEvent(LaplaceEvent(16.0, steps), 10), 1e-3).epsilon
    assert stated == pytest.approx(0.4285, abs=1e-4)
    for factor, is_enough in ((1.0, True), (0.999, False)):
        truth = masses @ np.maximum(0, -np.expm1(factor * stated - losses))
        assert (truth <= 1e-3 * (1 + 1e-9)) == is_enough


def test_fine_grids_approach_continuous_noise_and_coarse_ones_cost_more():
    costs = [
        epsilon(RepeatedEvent(LaplaceEvent(2.0, steps), 30), DELTA).epsilon
        for steps in (1, 3, 50, 2000, 0)
    ]
    assert all(a > b for a, b in pairwise(costs[:4]))
    assert costs[3] == pytest.approx(costs[4], rel=1e-5)
    unknown = epsilon(RepeatedEvent(LaplaceEvent(2.0), 30), DELTA).epsilon
    assert unknown == pytest.approx(costs[0], rel=1e-9)


@pytest.mark.parametrize(("first", "second"), [(2, 5), (3, 3), (1, 8)])
@pytest.mark.parametrize("discrete", [True, False])
def test_a_vector_is_no_worse_than_one_number_with_its_l1_sensitivity(first, second, discrete):
    # Noise of scale 4 steps; a vector whose coordinates move by `first` and `second` steps.
    def part(steps):
        return elementary_losses.laplace_loss(LaplaceEvent(4 / steps, steps if discrete else 0))

    for total in np.linspace(0, (first + second) / 4, 12):
        vector = summed_delta([part(first), part(second)], float(total))
        number = summed_delta([part(first + second)], float(total))
        assert vector <= number * (1 + 1e-3) + 1e-9


def test_evaluation_composes_with_training_on_top():
    from murmur.privacy.events import RandomizedResponseEvent

    training = RepeatedEvent(RandomizedResponseEvent(2.5, 10), 20)
    evaluation = RepeatedEvent(LaplaceEvent(2.0, 50), 10)
    both = epsilon(ComposedEvent((training, evaluation)), DELTA).epsilon
    apart = epsilon(training, DELTA).epsilon, epsilon(evaluation, DELTA).epsilon
    assert max(apart) < both < sum(apart)
