import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from murmur.privacy.mechanisms.clipping import (
    CLIP_STEPS,
    MIN_NORM,
    clip_l2,
    clip_to_steps,
    project_simplex,
    truncate,
)

FLOATS = st.sampled_from([np.float16, np.float32, np.float64])


@settings(max_examples=300, derandomize=True)
@given(
    FLOATS.flatmap(
        lambda dtype: arrays.arrays(
            dtype,
            st.integers(0, 20),
            elements=st.floats(
                allow_nan=False, allow_infinity=False, width=8 * np.dtype(dtype).itemsize
            ),
        )
    ),
    st.floats(1e-300, 1e300),
)
def test_no_vector_leaves_longer_than_the_bound(x, bound):
    clipped = clip_l2(x, bound)
    assert clipped.shape == x.shape and clipped.dtype == x.dtype
    largest = np.abs(clipped).max(initial=0).astype(np.float64)
    length = largest * np.linalg.norm(clipped / largest) if largest else 0.0
    assert length <= bound * (1 + 1e-15)


def test_long_vectors_are_scaled_and_short_ones_copied():
    x = np.array([[3.0, 0.0], [0.0, 4.0]])
    assert clip_l2(x, 1.0) == pytest.approx(x / 5, rel=1e-14)
    short = clip_l2(x, 5.0)
    assert np.array_equal(short, x) and not np.shares_memory(short, x)
    assert np.array_equal(x, [[3.0, 0.0], [0.0, 4.0]])


@pytest.mark.parametrize("x", [np.zeros(3), np.zeros(0), np.zeros((2, 0), np.float32)])
def test_zero_and_empty_vectors_stay_as_they_are(x):
    assert np.array_equal(clip_l2(x, 1.0), x)


def test_clipping_neither_overflows_nor_loses_tiny_vectors():
    assert np.linalg.norm(clip_l2(np.full(4, 1e308), 1.0)) == pytest.approx(1.0)
    assert np.linalg.norm(clip_l2(np.full(4, 1e-200), 1e-200)) == pytest.approx(1e-200)


def test_rounding_to_single_precision_does_not_pass_the_bound():
    rng = np.random.default_rng(5)
    for _ in range(2000):
        x = rng.normal(size=rng.integers(1, 30)).astype(np.float32)
        bound = 0.5 * float(np.linalg.norm(x))
        length = np.linalg.norm(clip_l2(x, bound).astype(np.float64))
        assert bound * (1 - 1e-5) < length <= bound


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_vectors_that_cannot_be_bounded_are_refused(bad):
    with pytest.raises(ValueError, match="x: holds NaN or infinities"):
        clip_l2(np.array([0.0, bad]), 1.0)
    with pytest.raises(ValueError, match="x: holds NaN or infinities"):
        project_simplex([0.0, bad])


def test_integers_are_not_clipped_silently_to_zero():
    with pytest.raises(ValueError, match="dtype int64"):
        clip_l2(np.array([3, 4]), 1.0)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf, 5e-324, MIN_NORM / 2])
def test_bounds_out_of_range_are_refused(bound):
    with pytest.raises(ValueError, match=f"^bound={bound}: "):
        clip_l2(np.ones(2), bound)


@settings(max_examples=200, derandomize=True)
@given(
    arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 4), st.integers(1, 12)),
        elements=st.floats(-1e6, 1e6),
    )
)
def test_projection_satisfies_the_conditions_of_optimality(x):
    p = project_simplex(x)
    assert p.min() >= 0 and p.sum(axis=-1) == pytest.approx(1.0, abs=1e-9)
    # x − p is one number on the support, and no larger off it (Karush–Kuhn–Tucker).
    gap = x - p
    shift = np.where(p > 0, gap, -np.inf).max(axis=-1, keepdims=True)
    tolerance = 1e-9 * (1 + np.abs(x).max())
    assert np.all(np.abs(gap - shift)[p > 0] <= tolerance)
    assert np.all(gap <= shift + tolerance)


def test_projection_of_known_points():
    assert project_simplex([0.2, 0.3, 0.5]) == pytest.approx([0.2, 0.3, 0.5])
    assert project_simplex([2.0, 0.0]) == pytest.approx([1.0, 0.0])
    assert project_simplex([1.0, 1.0, -5.0]) == pytest.approx([0.5, 0.5, 0.0])
    assert project_simplex([1e300, 0.0]) == pytest.approx([1.0, 0.0])
    assert project_simplex([-7.0]) == pytest.approx([1.0])


@pytest.mark.parametrize("x", [1.0, np.zeros((3, 0))])
def test_projection_of_nothing_is_refused(x):
    with pytest.raises(ValueError, match="the last axis"):
        project_simplex(x)


def exact_square(steps):
    return sum(int(k) ** 2 for k in steps)


@settings(max_examples=60)
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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 7, 200_000])
@pytest.mark.parametrize("clip", [0.1, 1e6])
def test_clipping_to_steps_is_clipping_and_then_truncating(dtype, size, clip):
    x = np.random.default_rng(size).standard_normal(size).astype(dtype)
    expected = truncate(clip_l2(x, clip), clip)
    steps, is_short = clip_to_steps(x, clip)
    assert np.array_equal(steps, expected)
    assert is_short == np.array_equal(clip_l2(x, clip), x)
    if dtype is np.float64:
        same, _ = clip_to_steps(x, clip, out=x.view(np.int64))
        assert np.array_equal(same, expected) and np.shares_memory(same, x) == (size > 0)
    with pytest.raises(ValueError, match="x: holds NaN or infinities"):
        clip_to_steps(np.append(expected, np.nan), clip)


@pytest.mark.parametrize("size", [2, 3, 1000])
def test_integers_are_no_longer_than_the_least_norm(size):
    for seed in range(20):
        x = np.random.default_rng(seed).standard_normal(size)
        assert exact_square(clip_to_steps(x, MIN_NORM)[0]) <= CLIP_STEPS**2
        assert exact_square(clip_to_steps(x * MIN_NORM, MIN_NORM)[0]) <= CLIP_STEPS**2


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
