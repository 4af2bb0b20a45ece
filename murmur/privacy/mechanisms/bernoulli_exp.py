"""Coins that fall heads with probability e⁻ˣ, decided as 128 random bits would decide."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from murmur.privacy.mechanisms.fixed_point import exp_neg, round_down
from murmur.privacy.noise import NoiseGenerator

# Twice over the errors of x (up to 64, a few units in the last place), exp and the comparison.
_RELATIVE_DOUBT = 2.0**-40
_UNIT = 2.0**-64


def bernoulli_exp(
    x: NDArray[np.float64],
    exact_x: Callable[[int], Fraction | Decimal | float],
    draws: NDArray[np.uint64],
    rng: NoiseGenerator,
) -> NDArray[np.bool_]:
    """Heads with probability e⁻ˣ, to within 2⁻¹²⁸.

    Doubles decide wherever their own error cannot matter. The others, about one in 2⁴⁰, are
    decided by comparing a 128-bit integer with a 128-bit threshold of 60-digit arithmetic.

    Args:
        x: exponents in [0, ∞), shape (n,), within a relative 2⁻⁵⁰ of the exact ones.
        exact_x: the exact exponent of lane i.
        draws: the first 64 random bits of each lane, shape (n,), used for nothing else.
        rng: where a doubtful lane's next 64 bits come from.

    Returns:
        Outcomes, shape (n,).
    """
    probability = np.exp(-x)
    uniform = draws * _UNIT
    heads = uniform < probability
    doubt = np.abs(uniform - probability) <= probability * _RELATIVE_DOUBT + 2 * _UNIT
    for lane in np.flatnonzero(doubt):
        number = (int(draws[lane]) << 64) | int(rng.uint64(1)[0])
        heads[lane] = number < round_down(exp_neg(exact_x(int(lane))), bits=128)
    return heads


def flip_exp(x: NDArray[np.float64], rng: NoiseGenerator) -> NDArray[np.bool_]:
    """Heads with probability e⁻ˣ, to within a relative 2⁻¹⁰⁰ however small it is.

    A coin of e⁻ˣ is as many coins of e⁻¹⁶ as fit and one of the rest, all heads.

    Args:
        x: exponents in [0, ∞), shape (n,), taken as exact.
        rng: the noise stream.

    Returns:
        Outcomes, shape (n,).
    """
    heads = np.ones(x.size, dtype=np.bool_)
    left, lanes = x.astype(np.float64), np.arange(x.size)
    while lanes.size:
        part = np.minimum(left, 16.0)
        won = bernoulli_exp(part, part.__getitem__, rng.uint64(lanes.size), rng)
        heads[lanes[~won]] = False
        more = won & (left > 16.0)
        left, lanes = left[more] - 16.0, lanes[more]
    return heads
