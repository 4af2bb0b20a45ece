import math

import numpy as np
import pytest

from murmur.privacy.mechanisms.grid import (
    quantize_nearest,
    quantize_simplex,
    quantized_l1_sensitivity,
    quantized_l2_sensitivity,
    quantized_simplex_sensitivity,
)


def test_nearest_rounds_ties_to_even():
    x = np.array([0.3, 0.25, 0.75, -0.25, -0.6], dtype=np.float32)
    assert quantize_nearest(x, 0.5).tolist() == [1, 0, 2, 0, -1]
    assert quantize_nearest(x.reshape(1, 5), 0.5).shape == (1, 5)


def test_rounded_neighbours_are_no_further_apart_than_stated():
    rng = np.random.default_rng(6)
    x = rng.normal(size=(50_000, 5))
    step = rng.normal(size=x.shape)
    for order, stated in ((1, quantized_l1_sensitivity), (2, quantized_l2_sensitivity)):
        near = x + 0.4 * step / np.linalg.norm(step, ord=order, axis=1, keepdims=True)
        bound = stated(0.4, 0.125, 5)
        moved = quantize_nearest(x, 0.125) - quantize_nearest(near, 0.125)
        furthest = np.linalg.norm(moved, ord=order, axis=1).max()
        assert 0.4 / 0.125 < furthest <= bound


def test_stated_sensitivities():
    assert quantized_l1_sensitivity(2.0, 0.25, 10) == 18
    assert quantized_l1_sensitivity(0.3, 0.25, 1) == 3
    assert quantized_l2_sensitivity(2.0, 0.25, 9) == 11.0
    assert quantized_simplex_sensitivity(1000, 10) == 2000
    assert quantized_simplex_sensitivity(1024, 10, change=2 / 64) == 42


def test_probability_vectors_keep_their_sum():
    rng = np.random.default_rng(7)
    for total in (1, 7, 1000, 2**40):
        p = rng.dirichlet(np.full(10, 0.3), size=2000).reshape(20, 100, 10)
        k = quantize_simplex(p, total)
        assert k.shape == p.shape and k.min() >= 0 and np.all(k.sum(axis=-1) == total)
        assert np.abs(k - p * total).max() < 1 + 1e-3


def test_largest_remainders_win_and_the_first_of_equals():
    assert quantize_simplex([0.26, 0.26, 0.48], 10).tolist() == [3, 2, 5]
    assert quantize_simplex([0.25, 0.25, 0.25, 0.25], 10).tolist() == [3, 3, 2, 2]
    assert quantize_simplex(np.full(3, 1 / 3, dtype=np.float32), 9).tolist() == [3, 3, 3]


def test_quantised_probability_vectors_are_no_further_apart_than_stated():
    rng, total, records = np.random.default_rng(8), 64, 20
    rows = rng.dirichlet(np.full(6, 0.2), size=(20_000, records + 1))
    mean, neighbour = rows[:, :-1].mean(axis=1), rows[:, 1:].mean(axis=1)
    moved = np.abs(quantize_simplex(mean, total) - quantize_simplex(neighbour, total)).sum(axis=1)
    bound = quantized_simplex_sensitivity(total, 6, change=2 / records)
    assert 2 * total / records < moved.max() <= bound
    corners = quantize_simplex(np.eye(6), total)
    assert np.abs(corners[0] - corners[1]).sum() == quantized_simplex_sensitivity(total, 6)


@pytest.mark.parametrize(
    "p",
    [[0.5, 0.6], [1.1, -0.1], [math.nan, 1.0], [math.inf, 0.0], [0.0, 0.0], 1.0, np.zeros((2, 0))],
)
def test_what_is_not_on_the_simplex_is_refused(p):
    with pytest.raises(ValueError, match=r"^p"):
        quantize_simplex(p, 100)


@pytest.mark.parametrize("total", [0, -5, 2**41])
def test_totals_out_of_range_are_refused(total):
    with pytest.raises(ValueError, match=f"^total={total}: "):
        quantize_simplex([1.0], total)


@pytest.mark.parametrize("grid", [0.0, -1.0, math.nan, math.inf, 0.3])
def test_grids_that_are_no_power_of_two_are_refused(grid):
    with pytest.raises(ValueError, match=f"^grid={grid}: "):
        quantize_nearest([1.0], grid)


@pytest.mark.parametrize("x", [math.nan, math.inf, 2.0**53])
def test_numbers_that_are_no_integers_of_the_grid_are_refused(x):
    with pytest.raises(ValueError, match=r"^(x|grid=1.0): "):
        quantize_nearest([x], 1.0)
