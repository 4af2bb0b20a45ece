"""Whose noise is Gaussian, exactly or nearly."""

import pytest

from murmur.privacy.events import (
    Adjacency,
    DiscreteGaussianEvent,
    PoissonSampledEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    Release,
    RepeatedEvent,
    Unit,
    is_gaussian,
)

NOISE = DiscreteGaussianEvent(100.0, 100.0)


@pytest.mark.parametrize(
    ("event", "nearly", "exactly"),
    [
        (NOISE, True, True),
        (PoissonSampledEvent(1.0, NOISE), True, True),
        (PoissonSampledEvent(0.5, NOISE), True, False),
        (RandomizedBitsEvent(0.1, 4000, 4000), True, False),
        (RandomizedBitsEvent(0.1, 4000, 40), False, False),
        (RandomizedResponseEvent(1.0, 10), False, False),
    ],
)
def test_what_is_gaussian_exactly_and_what_is_nearly(event, nearly, exactly):
    release = Release(RepeatedEvent(event, 2), Unit.CLIENT, Adjacency.REPLACE_ONE)
    assert is_gaussian(release) is nearly
    assert is_gaussian(release, exactly=True) is exactly
