"""What a sum gives away of one client by the sum's own law is never more than it is charged for.

Cohorts, weights, noise and numbers of releases are generated. ``make test-long`` tries thousands.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.events import (
    Adjacency,
    DiscreteGaussianEvent,
    PoissonSampledEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    Release,
    RepeatedEvent,
    SecurelySummedEvent,
    SummedEvent,
    Unit,
)
from tests.law_of_sums import (
    Labelled,
    Noised,
    bits_sum,
    epsilon_of,
    labelled_sum,
    noised_sum,
    normal_sum,
)
from tests.sums import noised, reported

DELTA, SUMS = 1e-5, Threat.SECURE_AGGREGATION
SLACK = 1 + 1e-6


def charge(event, count=1):
    return epsilon(RepeatedEvent(event, count), DELTA, SUMS).epsilon


def lost(seen, count=1):
    return epsilon_of([(seen, count)], DELTA)


def weights_of(rng, clients):
    """Weights of a cohort, the victim's first: alike, near each other, or far apart."""
    kind = rng.integers(4)
    if kind == 0:
        return [int(rng.integers(1, 4))] * clients
    if kind == 1:
        return rng.integers(1, 6, clients).tolist()
    if kind == 2:  # others' noise is on a lattice that the victim's release is not on
        return [1, *[int(rng.integers(5, 60))] * (clients - 1)]
    return [int(rng.integers(5, 60)), *[1] * (clients - 1)]


def of_noise(rng):
    """The loss and the charge of noised numbers in a sum of weighted clients."""
    clients = int(rng.integers(1, 9))
    weights = weights_of(rng, clients)
    sigma = float(np.exp(rng.uniform(np.log(0.5), np.log(12))))
    if rng.random() < 0.3:
        sigma = float(2.0 ** rng.integers(12, 20))
    moved = max(1, round(sigma * rng.uniform(0.2, 3)))
    parts = [Noised(sigma, weight) for weight in weights]
    count = int(rng.integers(1, 4))
    scalar = bool(rng.integers(2))
    least, greatest = min(weights), max(weights)
    event = noised(
        DiscreteGaussianEvent(sigma, float(moved), scalar=scalar),
        clients,
        weight=weights[0],
        least_weight=least,
        greatest_weight=greatest,
    )
    said = f"sigma={sigma}, moved={moved}, weights={weights}, count={count}, scalar={scalar}"
    return lost(noised_sum(parts[0], parts[1:], moved), count), charge(event, count), said


def of_labels(rng):
    """The same of randomised labels of images that all clients label."""
    clients, categories = int(rng.integers(1, 12)), int(rng.integers(2, 11))
    each, count = float(rng.uniform(0.1, 4)), int(rng.integers(1, 6))
    one = Labelled(each, categories)
    seen = labelled_sum(one, [one] * (clients - 1))
    event = reported(RandomizedResponseEvent(each, categories), clients)
    said = f"epsilon={each}, categories={categories}, clients={clients}, count={count}"
    return lost(seen, count), charge(event, count), said


def of_bits(rng):
    """The same of randomised bits of the same coordinates."""
    clients, count = int(rng.integers(1, 30)), int(rng.integers(1, 12))
    gamma = float(rng.uniform(0.01, 0.45))
    seen = bits_sum(gamma, [gamma] * (clients - 1))
    event = reported(RandomizedBitsEvent(gamma, 2 * count, count), clients)
    return lost(seen, count), charge(event), f"gamma={gamma}, clients={clients}, count={count}"


KINDS = {"noise": of_noise, "labels": of_labels, "bits": of_bits}


@pytest.mark.parametrize(("kind", "cases"), [("noise", 30), ("labels", 40), ("bits", 6)])
def test_no_sum_tells_more_of_a_client_than_it_is_charged_for(kind, cases):
    rng, shares = np.random.default_rng(0), []
    for _ in range(cases):
        true, paid, said = KINDS[kind](rng)
        assert true <= paid * SLACK + 1e-9, said
        shares.append(true / paid)
    assert max(shares) > 0.7  # the charge is not far above what some sums tell


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(1, 6))
def test_nor_do_thousands_of_others(kind, seed):
    rng = np.random.default_rng(seed)
    for _ in range(600):
        true, paid, said = KINDS[kind](rng)
        assert true <= paid * SLACK + 1e-9, said


FINE = DiscreteGaussianEvent(2.0**20, 2.0**20)
LABEL = RandomizedResponseEvent(1.0, 10)


def test_a_heavy_client_beside_light_ones_is_hidden_by_hardly_more_than_its_own_noise():
    light = [Noised(2.0**20, 30)] * 11
    true = lost(noised_sum(Noised(2.0**20, 300), light, 2.0**20))
    event = noised(FINE, 12, weight=300, least_weight=30, greatest_weight=300)
    assert true == pytest.approx(charge(event), rel=1e-3)
    assert true > 3 * charge(noised(FINE, 12))  # what √12 times the noise would cost
    assert true == pytest.approx(lost(normal_sum(1 / 1.0536)), rel=1e-3)


def test_the_sum_modulo_others_weights_shows_a_light_client_with_its_own_noise_alone():
    heavy = [Noised(4.0, 100)] * 11
    true = lost(noised_sum(Noised(4.0), heavy, 4))
    assert true == pytest.approx(lost(noised_sum(Noised(4.0), [], 4)), rel=1e-6)
    coarse = DiscreteGaussianEvent(4.0, 4.0)
    assert true <= charge(noised(coarse, 12, greatest_weight=100))
    assert true > 2 * charge(noised(coarse, 12))  # what it would cost if lattices did not count


def test_a_report_in_a_row_of_its_own_is_hidden_by_nobody():
    one = Labelled(1.0, 10)
    true = lost(labelled_sum(one, []), count=10)
    alone = Release(RepeatedEvent(LABEL, 10), Unit.CLIENT, Adjacency.REPLACE_ONE)
    assert true == pytest.approx(charge(SummedEvent(alone, 68)), rel=0.01)
    assert true > 3 * charge(reported(LABEL, 68), 10)  # what it would cost among 68 reports


@pytest.mark.parametrize("among_others", [20.0, math.inf])
def test_others_who_release_with_another_epsilon_hide_nothing_of_a_victim(among_others):
    one, other = Labelled(0.5, 10), Labelled(min(among_others, 50.0), 10)
    true = lost(labelled_sum(one, [other] * 11), count=10)
    assert true == pytest.approx(lost(labelled_sum(one, []), count=10), rel=0.01)
    believed = charge(reported(RandomizedResponseEvent(0.5, 10), 12), 10)
    assert true > 1.2 * believed  # so a sum of such clients must never come about


@pytest.mark.parametrize("steps", [1, 3])
def test_noise_within_a_training_is_hidden_by_nobody(steps):
    # On all records, since from samples nothing was gained in sums before.
    step = PoissonSampledEvent(1.0, FINE)
    trained = Release(RepeatedEvent(step, steps), Unit.RECORD, Adjacency.REPLACE_SPECIAL)
    alone = lost(normal_sum(1.0), steps)
    assert alone <= charge(SummedEvent(trained, 100)) * SLACK


def test_an_entry_of_an_earlier_version_counts_as_if_it_were_in_no_sum():
    true = lost(noised_sum(Noised(FINE.sigma), [], FINE.sensitivity))
    assert true <= charge(SecurelySummedEvent(FINE, 100)) * SLACK
    both = replace(noised(FINE, 100), event=SecurelySummedEvent(noised(FINE, 100).event, 100))
    assert true <= charge(both) * SLACK
