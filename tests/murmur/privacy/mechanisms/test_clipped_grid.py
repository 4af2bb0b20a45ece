"""Clipped vectors as integers: never longer than the clipping norm, in any dimension."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.privacy.mechanisms import clip_l2
from murmur.privacy.mechanisms.clipped_grid import CLIP_STEPS, truncate


def exact_square(steps):
    return sum(int(k) ** 2 for k in steps)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 3000),
    clip=st.floats(1e-6, 1e6),
    length=st.floats(0.0, 100.0),
)
def test_integers_are_no_longer_than_the_clipping_norm(seed, size, clip, length):
    x = np.random.default_rng(seed).standard_normal(size)
    x *= clip * length / np.linalg.norm(x)
    assert exact_square(truncate(clip_l2(x, clip), clip)) <= CLIP_STEPS**2


def test_one_coordinate_at_the_norm_stays_within_it():
    for clip in (0.1, 1 / 3, math.pi):
        assert abs(int(truncate(np.array([-clip]), clip)[0])) <= CLIP_STEPS


def test_integers_stand_for_the_vector():
    x = np.random.default_rng(0).standard_normal(100) / 20
    np.testing.assert_allclose(truncate(x, 2.0) * 2.0 / CLIP_STEPS, x, atol=4e-6)
    assert not truncate(np.zeros(5), 1.0).any()


@pytest.mark.parametrize("x", [[1.1], [np.nan], [np.inf]])
def test_what_is_not_clipped_is_refused(x):
    with pytest.raises(ValueError, match="must be clipped to clip=1 first"):
        truncate(np.array(x), 1.0)
