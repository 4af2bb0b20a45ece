"""The release of DPFL-BNN: encodings, Hamming clipping, public masks, calibration."""

import math

import numpy as np
import pytest

from murmur.algorithms.dpfl_bnn.bits import Calibration, ReleaseSettings, WeightBits, hamming_clip
from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.budget import Budget
from murmur.privacy.events import (
    NonPrivateEvent,
    RandomizedBitsEvent,
    RepeatedEvent,
    SummedEvent,
)
from murmur.privacy.noise import NoiseGenerator

SETTINGS = {
    "upload": "sign",
    "noise": True,
    "hamming": None,
    "mask": 1.0,
}


def plan(weights, budget, *, gamma, upload, noise, **settings):
    how = ReleaseSettings(gamma, upload, noise, "bit", Calibration(**settings))
    return how.plan(weights, budget)


def mean_of(release, weights, count=4000):
    """Mean ±1 value of each of the weights over ``count`` releases."""
    noise = NoiseGenerator.seeded("weight bits", release.upload)
    repeated = np.tile(weights, count).astype(np.float32)
    wide = WeightBits(repeated.size, release.gamma, release.upload)
    bits = wide.privatize(repeated, np.ones_like(repeated), noise)
    return 2 * bits.reshape(count, -1).mean(axis=0) - 1


@pytest.mark.parametrize("gamma", [0.1, 0.4])
def test_sign_upload_is_twice_gamma_times_the_sign_on_average(gamma):
    weights = np.array([-1.0, -0.2, -0.0, 0.0, 0.7])
    found = mean_of(WeightBits(5, gamma), weights)
    expected = 2 * gamma * np.array([-1, -1, 1, 1, 1])
    assert np.abs(found - expected).max() < 4.5 / math.sqrt(4000)


@pytest.mark.parametrize("gamma", [0.1, 0.4, None])
def test_stochastic_upload_is_unbiased_up_to_its_scale(gamma):
    weights = np.array([-1.0, -0.2, 0.0, 0.7, 1.0])
    found = mean_of(WeightBits(5, gamma, "stochastic"), weights)
    scale = 1 if gamma is None else 2 * gamma
    assert np.abs(found - scale * weights).max() < 4.5 / math.sqrt(4000)


def test_without_noise_the_signs_leave_as_they_are_and_say_so():
    release = WeightBits(4, None)
    bits = release.privatize(np.array([0.1, -0.1, 0, -1]), np.ones(4), NoiseGenerator.seeded(0))
    assert bits.tolist() == [1, 0, 1, 0]
    assert release.event() == NonPrivateEvent()


def test_hamming_clipping_keeps_the_strongest_changes_and_no_more():
    reference = np.array([1, 1, 1, 0, 0, 0], np.uint8)
    bits = np.array([0, 0, 1, 1, 1, 0], np.uint8)
    weights = np.array([-0.1, -0.9, 0.5, 0.4, 0.3, -1.0])
    assert hamming_clip(bits, reference, weights, 2).tolist() == [1, 0, 1, 1, 0, 0]
    assert hamming_clip(bits, reference, weights, 4).tolist() == bits.tolist()


def test_any_two_clipped_vectors_differ_in_at_most_the_sensitivity_charged():
    rng = np.random.default_rng(1)
    release = WeightBits(200, 0.1, hamming=7)
    assert release.sensitivity == 14
    noiseless = WeightBits(200, None, hamming=7)
    for _ in range(50):
        reference = rng.uniform(-1, 1, 200)
        a, b = (
            noiseless.privatize(rng.uniform(-1, 1, 200), reference, NoiseGenerator.seeded(0))
            for _ in range(2)
        )
        assert np.count_nonzero(a != b) <= 14
    assert release.event().event == RandomizedBitsEvent(0.1, 200, 14)


def test_mask_uploads_its_share_and_draws_the_same_coordinates_from_the_same_stream():
    release = WeightBits(1001, 0.1, mask=0.25)
    assert release.uploaded == 251
    first = release.coordinates(0, 3)
    assert len(np.unique(first)) == 251
    assert np.array_equal(first, release.coordinates(0, 3))
    assert not np.array_equal(first, release.coordinates(0, 4))
    assert release.event().event == RandomizedBitsEvent(0.1, 251, 251)
    assert WeightBits(1001, 0.1).coordinates(0, 3) is None


def test_sensitivity_never_exceeds_what_is_uploaded():
    assert WeightBits(100, 0.1, hamming=30, mask=0.4).sensitivity == 40


@pytest.mark.parametrize(
    ("threat", "clients", "hamming"),
    [("local", 1, None), ("secure_aggregation", 50, None), ("secure_aggregation", 50, 5)],
)
def test_calibrated_gamma_uses_the_budget_up_and_no_more(threat, clients, hamming):
    budget = Budget(8.0, 1e-5, 10, threat=threat, honest_clients=clients)
    release = plan(300, budget, gamma=None, **{**SETTINGS, "hamming": hamming})
    event = RepeatedEvent(SummedEvent(release.event(), clients), 10)
    spent = epsilon(event, 1e-5, Threat(threat)).epsilon
    assert 7.99 < spent <= 8.0


def test_gamma_calibrated_by_the_papers_theorem_matches_the_specification():
    budget = Budget(8.0, 1e-5, 100, paper_semantics=True)
    release = plan(81_958, budget, gamma=None, **SETTINGS)
    assert release.gamma == pytest.approx(0.0366, rel=5e-3)


def test_infinite_budget_without_gamma_means_no_noise():
    assert plan(9, Budget(math.inf, 1e-5), gamma=None, **SETTINGS).gamma is None
    assert plan(9, Budget(math.inf, 1e-5), gamma=0.1, **{**SETTINGS, "noise": False}).gamma is None


@pytest.mark.parametrize(
    ("budget", "gamma", "changed", "words"),
    [
        (8.0, 0.1, {}, "gamma=0.1: fixes the noise.*privacy.epsilon=inf"),
        (8.0, None, {"noise": False}, "noise=False: keeps no budget"),
        (math.inf, 0.5, {}, "gamma=0.5"),
        (math.inf, 0.1, {"upload": "float"}, "upload='float'"),
        (math.inf, 0.1, {"mask": 0.0}, "mask=0.0"),
        (math.inf, 0.1, {"hamming": 0}, "hamming=0"),
        (math.inf, 0.1, {"hamming": 101}, r"hamming=101: must lie in 1\.\.100"),
        (math.inf, 0.1, {"hamming": 5, "upload": "stochastic"}, "needs upload=sign"),
    ],
)
def test_contradictory_settings_are_refused(budget, gamma, changed, words):
    with pytest.raises(ValueError, match=words):
        plan(100, Budget(budget, 1e-5), gamma=gamma, **{**SETTINGS, **changed})
