"""Distributed noise on updates: the budget at the fewest survivors, and the clipping itself."""

import math

import numpy as np
import pytest

from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.budget import Budget, Cohorts
from murmur.privacy.events import RepeatedEvent, SummedEvent
from murmur.privacy.mechanisms.clipping import CLIP_STEPS
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.protection import Distributed

SUMS, NOISE = "secure_aggregation", NoiseGenerator.seeded("test")


def protection(threat=SUMS, honest=40, adaptive=False, participations=5, budget=2.0):
    promise = Budget(
        budget, 1e-5, 20, threat=threat, honest_clients=honest, participations=participations
    )
    clipping = {"norm": 1.0, "adaptive": adaptive, "bit_noise": 40.0}
    return Distributed(promise, Cohorts(200, 50), clipping=clipping)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(("threat", "honest"), [(SUMS, 40), ("local", 1)])
def test_all_rounds_of_a_client_meet_the_budget_to_half_a_percent(threat, honest, adaptive):
    it = protection(threat, honest, adaptive)
    event = RepeatedEvent(SummedEvent(it.release_event(), honest), 5)
    assert 0.995 * 2.0 < epsilon(event, 1e-5, Threat(threat)).epsilon <= 2.0


def test_fewer_survivors_than_planned_cost_more():
    event = SummedEvent(protection().release_event(), 30)
    together = RepeatedEvent(event, 5)
    assert epsilon(together, 1e-5, Threat.SECURE_AGGREGATION).epsilon > 2.1


@pytest.mark.parametrize("adaptive", [False, True])
def test_release_is_clipped_noised_and_within_its_bound(adaptive):
    it = protection(adaptive=adaptive)
    vector = np.zeros(3000)
    vector[0] = 50.0
    releases = np.stack([it.release(vector, 2.0, NOISE) for _ in range(3)])
    noise = releases[:, 1:3000]
    share = it.update_multiplier * 2 * CLIP_STEPS / math.sqrt(40)
    assert abs(noise.std() / share - 1) < 0.05
    assert np.abs(releases).max() <= it.bound
    assert abs(releases[:, 0].mean() - CLIP_STEPS) < 5 * share


def test_the_mean_needs_no_more_noise_and_divides_by_those_in_the_sum():
    it = protection()
    total = np.full(4, 30 * CLIP_STEPS, np.int64)
    np.testing.assert_allclose(it.mean(1, total, 15, NOISE), 2.0)


def test_the_count_of_short_updates_is_noised_in_the_same_way_and_moves_the_norm():
    it = protection(adaptive=True)
    bits = [it.release(np.zeros(1), 1.0, NoiseGenerator.seeded(i))[-1] for i in range(400)]
    assert abs(np.mean(bits) / CLIP_STEPS - 1) < 1  # b − ½ = ½, under noise
    assert np.std(bits) == pytest.approx(2 * 40.0 * CLIP_STEPS / math.sqrt(40), rel=0.15)
    it.mean(1, np.array([0, 10 * CLIP_STEPS], np.int64), 10, NOISE)
    assert it.clip < 1.0


def test_noise_that_no_message_can_hold_is_refused():
    with pytest.raises(ValueError, match="32 bits"):
        protection("local", 1, participations=20, budget=0.05)
