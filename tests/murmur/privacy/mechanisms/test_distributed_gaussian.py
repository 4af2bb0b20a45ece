"""Noise that many clients share: how much, with how few of them, and what it costs."""

import math
from datetime import UTC, datetime

import numpy as np
import pytest

from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.accounting.calibrate import gaussian_noise_multiplier
from murmur.privacy.events import (
    ComposedEvent,
    RepeatedEvent,
    event_from_dict,
)
from murmur.privacy.mechanisms.distributed_gaussian import DistributedGaussian
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.policy import Policy, Refusal

SUMS = Threat.SECURE_AGGREGATION
# useful_privacy.md section 1: ε, labels of one client at δ = 1e-5, and σ in votes.
VOTES = [(8, 240, 13.15036), (4, 32, 8.64929), (2, 400, 56.39353), (1, 200, 74.61263)]


@pytest.mark.parametrize(("budget", "labels", "sigma"), VOTES)
def test_votes_get_the_analytic_gaussians_noise(budget, labels, sigma):
    distance = math.sqrt(2 * labels)
    assert gaussian_noise_multiplier(budget, 1e-5) * distance == pytest.approx(sigma, abs=1e-5)
    mechanism = DistributedGaussian.calibrated(budget, 1e-5, distance, honest_clients=85)
    assert sigma <= mechanism.sigma < sigma * 1.0001
    assert 0.9999 * budget < epsilon(mechanism.event(), 1e-5, SUMS).epsilon <= budget


def test_a_coarse_grid_is_calibrated_by_its_exact_law():
    mechanism = DistributedGaussian.calibrated(
        6.0, 1e-5, math.sqrt(20), honest_clients=30, grid=1.0, coordinates=20
    )
    assert mechanism.share < 2
    assert 5.99 < epsilon(mechanism.event(), 1e-5, SUMS).epsilon <= 6.0


def test_releases_share_the_budget():
    mechanism = DistributedGaussian.calibrated(4.0, 1e-5, 2.0, honest_clients=10, releases=16)
    once = DistributedGaussian.calibrated(4.0, 1e-5, 2.0, honest_clients=10)
    assert mechanism.sigma == pytest.approx(4 * once.sigma, rel=1e-3)
    together = RepeatedEvent(mechanism.event(), 16)
    assert 3.99 < epsilon(together, 1e-5, SUMS).epsilon <= 4.0


def test_the_fewest_survivors_hold_all_of_the_noise():
    mechanism = DistributedGaussian(sigma=3.0, sensitivity=1.0, honest_clients=25, grid=2.0**-10)
    zeros = np.zeros(4000, np.int64)
    total = sum(
        mechanism.privatize_integers(zeros, NoiseGenerator.seeded("client", i)) for i in range(25)
    )
    spread = total.std() * mechanism.grid / mechanism.sigma
    assert abs(spread - 1) < 5 / math.sqrt(2 * total.size)
    assert abs(total).max() < 25 * mechanism.max_abs


def test_a_single_message_is_worth_a_single_share():
    mechanism = DistributedGaussian.calibrated(2.0, 1e-5, 1.0, honest_clients=100)
    assert epsilon(mechanism.event(), 1e-5, Threat.LOCAL).epsilon > 20


def test_with_one_honest_client_nothing_is_shared():
    alone = DistributedGaussian.calibrated(2.0, 1e-5, 1.0)
    assert epsilon(alone.event(), 1e-5).epsilon <= 2.0


def test_a_policy_for_sums_counts_the_sum_and_insists_on_its_size():
    mechanism = DistributedGaussian.calibrated(2.0, 1e-5, 1.0, honest_clients=50)
    event = mechanism.event()
    rules = {"epsilon_per_release": {"x": 2.0}, "epsilon_per_lifetime": 2.0, "delta": 1e-5}
    asked = {
        "algorithm": "x",
        "event": event_from_dict(event.to_dict()),
        "spent": ComposedEvent(()),
        "delta": 1e-5,
        "seeded_noise": False,
        "now": datetime(2026, 1, 1, tzinfo=UTC),
    }
    sums = {**rules, "threat": "secure_aggregation", "mechanisms": None}
    Policy("mine", **sums, minimum_surviving_clients=50).check(**asked)
    with pytest.raises(Refusal, match="honest_clients=50"):
        Policy("mine", **sums, minimum_surviving_clients=51).check(**asked)
    with pytest.raises(Refusal, match="epsilon of one release"):
        Policy("mine", **{**sums, "threat": "local"}).check(**asked)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sensitivity": 0.0}, "sensitivity=0.0"),
        ({"honest_clients": 0}, "honest_clients=0"),
        ({"sigma": 1e-3}, "sigma of one client"),
        ({"coordinates": 3}, "coordinates=3"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        DistributedGaussian(**{"sigma": 8.0, "sensitivity": 1.0, **settings})
