"""Discrete Gaussian noise on a fine grid costs what Gaussian noise costs, and a hair more."""

import math

import numpy as np
import pytest
from scipy.special import log_ndtr

from murmur.privacy.accounting import epsilon, gaussian
from murmur.privacy.events import (
    MAX_VECTOR_ENTRIES,
    DiscreteGaussianEvent,
    GaussianEvent,
    RepeatedEvent,
)
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.mechanisms.distributed_gaussian import DistributedGaussian
from murmur.privacy.mechanisms.sampled_gaussian import SampledGaussian
from murmur.privacy.noise import NoiseGenerator

SENSITIVITY = 2.0**17


def discrete(multiplier):
    return DiscreteGaussianEvent(multiplier * SENSITIVITY, SENSITIVITY)


@pytest.mark.parametrize("multiplier", [0.6, 1.0, 5.0])
@pytest.mark.parametrize("count", [1, 30])
def test_fine_noise_costs_what_the_gaussian_costs(multiplier, count):
    fine = epsilon(RepeatedEvent(discrete(multiplier), count), 1e-5)
    ideal = epsilon(RepeatedEvent(GaussianEvent(multiplier), count), 1e-5).epsilon
    assert ideal <= fine.epsilon <= ideal + count * 1e-4
    assert fine.epsilon < fine.bounds["rdp"]


def test_coarse_noise_is_not_taken_for_gaussian():
    coarse = DiscreteGaussianEvent(
        gaussian.MIN_CONTINUOUS_SIGMA / 2, gaussian.MIN_CONTINUOUS_SIGMA / 2
    )
    assert "exact" not in epsilon(coarse, 1e-5).bounds


def test_an_epsilon_at_which_the_exceptions_would_matter_is_left_to_others():
    event = RepeatedEvent(discrete(1.0), 40_000)
    assert "exact" not in epsilon(event, 1e-5).bounds


def rounded_log_mass(x, sigma):
    """ln P(round(σZ) = x), from tails so that nothing cancels."""
    low, high = log_ndtr(-(np.abs(x) + 0.5) / sigma), log_ndtr(-(np.abs(x) - 0.5) / sigma)
    return high + np.log1p(-np.exp(low - high))


@pytest.mark.parametrize("sigma", [4.0, 16.0])
def test_the_inequalities_of_the_proof_hold_coordinate_by_coordinate(sigma):
    """At a σ so small that the terms are visible; they shrink like 1/σ²."""
    x = np.arange(1, int(6 * sigma), dtype=np.float64)
    density = -((x / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
    gap = rounded_log_mass(x, sigma) - density
    centre = ((x / sigma) ** 2 - 1) / (24 * sigma**2)
    assert np.all(gap <= centre + 1 / (512 * sigma**4) + 1e-12)
    assert np.all(gap >= centre - x**4 / (960 * sigma**8) - 1e-12)


def test_the_bound_on_all_coordinates_covers_drawn_vectors():
    rng, sigma, size = np.random.default_rng(0), gaussian.MIN_CONTINUOUS_SIGMA, 10_000
    vector = np.rint(sigma * rng.standard_normal(size))
    total = float(np.sum(((vector / sigma) ** 2 - 1) / (24 * sigma**2)))
    assert abs(total) < gaussian.log_ratio(sigma)


def test_the_bound_is_for_the_longest_vector_that_is_released():
    """η for 2²⁶ coordinates by hand: 2√(dt) + 2t over 24σ², and what has σ⁴ below it."""
    sigma, d, t = gaussian.MIN_CONTINUOUS_SIGMA, 2.0**26, 20_000.0
    spread = 2 * math.sqrt(d * t) + 2 * t
    rest = d / 512 + (d + spread) ** 2 / 960
    assert gaussian.log_ratio(sigma) == pytest.approx(spread / 24 / sigma**2 + rest / sigma**4)
    assert d == MAX_VECTOR_ENTRIES


@pytest.mark.parametrize(
    "release",
    [
        DiscreteGaussian(2.0**20, 2.0**20).privatize_integers,
        DistributedGaussian(2.0**20, 2.0**20, 10).privatize_integers,
        SampledGaussian(0.1, 1.0, 2**20).perturb,
    ],
)
def test_a_vector_beyond_the_proof_is_not_released(release):
    vector = np.broadcast_to(np.int64(0), MAX_VECTOR_ENTRIES + 1)  # one number in memory
    with pytest.raises(ValueError, match=r"^k of 67108865 numbers: must have 2\*\*26 at most"):
        release(vector, NoiseGenerator.seeded("long"))
