"""Sums of discrete Gaussians: their law, their loss, and what each adversary is told."""

import itertools
import math

import numpy as np
import pytest

from murmur.privacy.accounting import Threat, epsilon, gaussian
from murmur.privacy.accounting.elementary_losses import law_of_sum
from murmur.privacy.events import DiscreteGaussianEvent, RepeatedEvent
from tests.sums import noised

SUMS = Threat.SECURE_AGGREGATION


def discrete_gaussian(sigma, reach):
    law = np.exp(-((np.arange(-reach, reach + 1) / sigma) ** 2) / 2)
    return law / law.sum()


def test_law_is_the_convolution_of_its_parts():
    one = discrete_gaussian(0.8, 30)
    expected = np.convolve(np.convolve(one, one), one)[60:-60]
    np.testing.assert_allclose(law_of_sum(0.8, 3, 30), expected, rtol=1e-12)


def test_delta_of_two_coordinates_is_what_enumeration_gives():
    event = RepeatedEvent(DiscreteGaussianEvent(0.6, 1.0, scalar=True), 2)
    law = law_of_sum(0.6, 4, 25)
    here, there = law[1:], law[:-1]
    brute = sum(
        max(0.0, here[i] * here[j] - math.exp(1.5) * there[i] * there[j])
        for i, j in itertools.product(range(len(here)), repeat=2)
    )
    assert epsilon(noised(event, 4), brute, SUMS).epsilon == pytest.approx(1.5, rel=1e-4)


# useful_privacy.md section 1: labels, σ₁ in votes, honest clients, ε by a library that rounds up
@pytest.mark.parametrize(
    ("labels", "sigma", "clients", "rounded_up"),
    [(32, 1.0, 40, 5.764), (50, 0.8, 200, 3.802), (20, 0.5, 60, 8.537)],
)
def test_exact_epsilon_of_votes_on_a_coarse_grid(labels, sigma, clients, rounded_up):
    votes = RepeatedEvent(DiscreteGaussianEvent(sigma, 1.0, scalar=True), 2 * labels)
    proven = epsilon(noised(votes, clients), 1e-5, SUMS).epsilon
    assert rounded_up * 0.998 < proven <= rounded_up


def test_coarse_noise_is_not_taken_for_the_gaussian():
    votes = RepeatedEvent(DiscreteGaussianEvent(0.5, 1.0, scalar=True), 40)
    proven = epsilon(noised(votes, 60), 1e-5, SUMS).epsilon
    continuous = gaussian.epsilon_of_mu(math.sqrt(40) / (0.5 * math.sqrt(60)), 1e-5)
    assert proven > 1.09 * continuous


def test_fine_noise_adds_up_and_whoever_reads_one_message_sees_one_share():
    alone, together = DiscreteGaussianEvent(2.0**15, 2.0**15), DiscreteGaussianEvent(2.0**18, 2**15)
    event = noised(alone, 64)
    assert epsilon(event, 1e-5, SUMS).epsilon == epsilon(together, 1e-5).epsilon
    assert epsilon(event, 1e-5).epsilon == epsilon(alone, 1e-5).epsilon


def test_more_clients_than_a_law_can_hold_protect_at_least_as_the_fewer():
    alone = DiscreteGaussianEvent(3.0, 1.0, scalar=True)
    few, many = (epsilon(noised(alone, n), 1e-5, SUMS).epsilon for n in (500, 10**7))
    assert 0 <= many < few
