"""ε of sampled and discrete Gaussians is never below the truth, however small δ is.

The truth comes from the losses' moments, without any lattice or composition (``true_delta``).
"""

import math

import numpy as np
import pytest

from murmur.privacy.accounting import epsilon
from murmur.privacy.events import (
    ComposedEvent,
    DiscreteGaussianEvent,
    GaussianEvent,
    PoissonSampledEvent,
    RandomizedResponseEvent,
    RepeatedEvent,
)
from tests.murmur.privacy.accounting.true_delta import log_delta

DELTAS = [1e-5, 1e-10, 1e-15]


def normal(multiplier):
    """Outcomes and the logarithms of their masses: the trapezoidal rule, exact to rounding here."""
    x = np.linspace(-40 * multiplier, 40 * multiplier, 1201)
    step = math.log((x[1] - x[0]) / multiplier) - math.log(2 * math.pi) / 2
    return x, step - (x / multiplier) ** 2 / 2


def sampled(rate, multiplier, there):
    """Losses of one step, and the logarithms of their masses."""
    x, log_mass = normal(multiplier)
    loss = np.log1p(rate * np.expm1((2 * x - 1) / (2 * multiplier**2)))
    return (loss, log_mass + loss) if there else (-loss, log_mass)


def discrete(sigma, sensitivity):
    x = np.arange(-30 * sigma, 30 * sigma + 1)
    log_mass = -((x / sigma) ** 2) / 2
    log_mass -= np.log(np.exp(log_mass).sum())
    return sensitivity * (sensitivity - 2 * x) / (2 * sigma**2), log_mass


def require_bound(event, directions, failure, excess):
    """That the stated ε is not below the truth, and above it by no more than ``excess`` of it."""
    stated = epsilon(event, failure)
    truth = max(log_delta(parts, stated.epsilon) for parts in directions)
    assert truth <= math.log(failure) + 1e-9
    less = max(log_delta(parts, stated.epsilon * (1 - excess)) for parts in directions)
    assert less > math.log(failure)
    return stated


@pytest.mark.parametrize("failure", DELTAS)
@pytest.mark.parametrize(
    ("rate", "multiplier", "steps"),
    [(0.02, 1.0, 10_000), (0.1, 2.773, 300), (0.003, 0.7, 400), (0.3, 150.0, 40)],
)
def test_many_sampled_steps_cost_no_less_than_the_truth(rate, multiplier, steps, failure):
    event = RepeatedEvent(PoissonSampledEvent(rate, GaussianEvent(multiplier)), steps)
    both = [[(*sampled(rate, multiplier, there), steps)] for there in (True, False)]
    stated = require_bound(event, both, failure, 2e-3)
    assert stated.bounds["pld"] < stated.bounds["rdp"]


@pytest.mark.parametrize("failure", DELTAS)
def test_a_discrete_scalar_costs_no_less_than_the_truth(failure):
    event = RepeatedEvent(DiscreteGaussianEvent(20.0, 7, True), 100)
    require_bound(event, [[(*discrete(20, 7), 100)]], failure, 2e-3)


@pytest.mark.parametrize("failure", DELTAS)
def test_releases_of_several_kinds_together_cost_no_less_than_the_truth(failure):
    event = ComposedEvent(
        (
            RepeatedEvent(PoissonSampledEvent(0.1, GaussianEvent(1.0)), 200),
            RepeatedEvent(DiscreteGaussianEvent(20.0, 7, True), 10),
            RepeatedEvent(RandomizedResponseEvent(0.5, 2), 10),
            GaussianEvent(2.0),
        )
    )
    kept = 1 / (1 + math.exp(-0.5))
    answers = np.array([0.5, -0.5]), np.log([kept, 1 - kept])
    x, log_mass = normal(1.0)
    others = [(*discrete(20, 7), 10), (*answers, 10), (0.125 + 0.5 * x, log_mass, 1)]
    both = [[(*sampled(0.1, 1.0, there), 200), *others] for there in (True, False)]
    require_bound(event, both, failure, 2e-3)


def test_a_delta_below_what_floats_can_tell_apart_is_left_to_other_bounds():
    event = RepeatedEvent(PoissonSampledEvent(0.1, GaussianEvent(1.0)), 1000)
    bounds = epsilon(event, 1e-41).bounds
    assert "pld" not in bounds and bounds["rdp"] < 1000


def test_ten_thousand_steps_at_a_delta_that_plain_fft_cannot_see():
    """By ``log_delta`` the truth is 24.2101; a plain FFT says 23.08, Rényi orders 25.37."""
    event = RepeatedEvent(PoissonSampledEvent(0.02, GaussianEvent(1.0)), 10_000)
    assert 24.2101 < epsilon(event, 1e-14).bounds["pld"] < 24.24
