"""Coins that fall heads with probability e⁻ˣ, decided as 128 random bits would decide."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from privacy.mechanisms.fixed_point import exp_neg, round_down
from privacy.noise import NoiseGenerator

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
