"""What a secure sum hides: others' noise counts only where it is known to be there."""

import math

import numpy as np
import pytest

from murmur.privacy.accounting import Threat, View, epsilon
from murmur.privacy.accounting.flatten import flatten
from murmur.privacy.accounting.gaussian import gain
from murmur.privacy.events import (
    Adjacency,
    ComposedEvent,
    DiscreteGaussianEvent,
    GaussianEvent,
    PureEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    Release,
    RepeatedEvent,
    SecurelySummedEvent,
    ShuffledEvent,
    SummedEvent,
    Unit,
)
from tests.sums import noised, reported

SUMS = Threat.SECURE_AGGREGATION
FINE = DiscreteGaussianEvent(2.0**20, 2.0**20)
LABEL = RandomizedResponseEvent(1.0, 10)
KINDS = [GaussianEvent(2.0), FINE, LABEL, PureEvent(1.0), RandomizedBitsEvent(0.1, 50, 50)]


def spend(event):
    return epsilon(event, 1e-5, SUMS).epsilon


@pytest.mark.parametrize("event", KINDS, ids=lambda event: type(event).__name__)
def test_a_release_that_does_not_say_how_a_sum_hides_it_is_charged_in_full(event):
    unsaid = Release(event, Unit.CLIENT, Adjacency.REPLACE_ONE)
    assert spend(SummedEvent(unsaid, 100)) == spend(event)
    assert spend(SummedEvent(event, 100)) == spend(event)


@pytest.mark.parametrize("event", KINDS, ids=lambda event: type(event).__name__)
def test_what_earlier_versions_called_hidden_is_charged_in_full(event):
    assert spend(RepeatedEvent(SecurelySummedEvent(event, 100), 3)) == spend(
        RepeatedEvent(event, 3)
    )


@pytest.mark.parametrize("clients", [2, 60, 10_000])
def test_reports_in_rows_of_their_own_add_up_whatever_the_number_of_clients(clients):
    alone = Release(LABEL, Unit.CLIENT, Adjacency.REPLACE_ONE)  # secure_sums.md: disjoint, 4 rounds
    assert epsilon(RepeatedEvent(SummedEvent(alone, clients), 4), 0.0, SUMS).epsilon == 4.0


def test_only_the_releases_that_are_hidden_are_relieved():
    hidden, alone = noised(FINE, 100).event, Release(FINE, Unit.CLIENT, Adjacency.REPLACE_ONE)
    both = SummedEvent(ComposedEvent((hidden, alone)), 100)
    expected = ComposedEvent((DiscreteGaussianEvent(10 * FINE.sigma, FINE.sensitivity), FINE))
    assert spend(both) == spend(expected)


@pytest.mark.parametrize(
    ("sigma", "clients", "weight", "least", "golden"),
    [(1.0, 12, 300, 30, 1.0536), (1.0, 12, 1, 1, 3.4641), (0.8, 60, 2, 1, 3.1749)],
)
def test_the_noise_beside_a_weighted_release(sigma, clients, weight, least, golden):
    assert sigma * gain(clients, weight, least) == pytest.approx(golden, abs=5e-5)


def test_noise_of_weighted_releases_counts_by_their_weights():
    event = noised(FINE, 12, weight=300, least_weight=30, greatest_weight=300)
    together = DiscreteGaussianEvent(FINE.sigma * math.sqrt(1.11), FINE.sensitivity)
    assert spend(event) == spend(together)
    light = noised(FINE, 12, weight=30, least_weight=30, greatest_weight=300)
    assert spend(light) == spend(noised(FINE, 12))


def test_noise_that_is_coarse_beside_others_weights_is_not_hidden_by_theirs():
    coarse = DiscreteGaussianEvent(20.0, 20.0)
    assert spend(noised(coarse, 12)) < 0.5 * spend(coarse)
    weights = {"weight": 1, "least_weight": 1, "greatest_weight": 100}
    assert spend(noised(coarse, 12, **weights)) == spend(coarse)


def test_others_noise_on_a_coarser_lattice_really_hides_nothing():
    # One client of weight 1 beside eleven of weight 100: the sum modulo 100 is its own release.
    sigma, others, reach = 4.0, 11, 30_000
    own = np.exp(-((np.arange(-reach, reach + 1) / sigma) ** 2) / 2)
    own /= own.sum()
    law = own.copy()
    steps = np.arange(-reach, reach + 1)
    beside = np.where(steps % 100 == 0, np.exp(-((steps / (100 * sigma)) ** 2) / 2 / others), 0.0)
    law = np.convolve(law, beside / beside.sum())[reach:-reach]
    shift = 4
    distance = np.abs(law[shift:] - law[:-shift]).sum() / 2
    alone = np.abs(own[shift:] - own[:-shift]).sum() / 2
    assert distance == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("event", [LABEL, RandomizedBitsEvent(0.1, 50, 50)], ids=["label", "bits"])
def test_reports_of_unequal_weights_are_not_hidden(event):
    weights = {"weight": 2, "least_weight": 1, "greatest_weight": 2}
    assert spend(reported(event, 50, **weights)) == spend(event)
    assert spend(reported(event, 50)) < spend(event)


def test_whoever_reads_messages_sees_no_sum():
    for event in KINDS:
        assert epsilon(noised(event, 50), 1e-5).epsilon == epsilon(event, 1e-5).epsilon
        assert dict(flatten(reported(event, 50), View())) == {event: 1}


def test_bits_and_labels_in_shared_cells_are_hidden_by_their_own_laws():
    bits = RandomizedBitsEvent(0.1, 50, 50)
    assert dict(flatten(reported(bits, 9), View(SUMS))) == {SummedEvent(bits, 9): 1}
    assert dict(flatten(reported(LABEL, 9), View(SUMS))) == {ShuffledEvent(LABEL, 9): 1}
    assert dict(flatten(noised(LABEL, 9), View(SUMS))) == {LABEL: 1}
