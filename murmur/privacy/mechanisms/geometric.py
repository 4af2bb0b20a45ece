"""An exact, vectorised sampler for the geometric distribution P(G ≥ g) = e^(−g·rate), g ≥ 0.

Writing G in a mixed radix, G = d₀ + B₀(d₁ + B₁(d₂ + …)), the digits of a geometric variable are
independent, because e^(−rate·Σ) is a product. So every digit is drawn from its own small table.
The last digit has no upper end: it is a number below its radix B, or "B or more", and then
memorylessness lets it be drawn again on top of B. No value is cut off, however far in the tail.
"""

from __future__ import annotations

import math
from decimal import Decimal
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from murmur.privacy.mechanisms.categorical import BITS, Categorical
from murmur.privacy.mechanisms.fixed_point import CONTEXT, exp_neg, round_up
from murmur.privacy.noise import NoiseGenerator

_RADIX = 1 << 10
_TAIL = 16  # "B or more" is left to about e⁻¹⁶ of the draws


class Geometric:
    """Integers G ≥ 0 with P(G = g) = (1 − e^(−rate)) · e^(−g·rate).

    Every digit's probabilities are within 2⁻¹²⁸ of the ideal ones, and none is 0. Where rate ≤ 16,
    a digit's rarest value has probability e⁻³² or more, which makes the rounding a factor of
    1 ± 2⁻⁸⁰ at most: the ratio of the probabilities of any two values is off by no more than
    that per digit (of at most six) and per 16/rate of their distance.
    """

    def __init__(self, rate: Decimal) -> None:
        """Build the tables; ``rate`` is above 2⁻⁵⁰ and at most 1024.

        Raises:
            ValueError: ``rate`` is out of that range.
        """
        if not CONTEXT.power(Decimal(2), -50) < rate <= 1024:
            raise ValueError(f"rate={rate}: must lie in (2**-50, 1024]")
        self._digits: list[Categorical] = []
        self._units = [1]
        while (mean := 1 / float(rate)) * _TAIL > _RADIX:
            self._digits.append(Categorical(_digit_weights(rate)))
            self._units.append(self._units[-1] * _RADIX)
            rate = CONTEXT.multiply(rate, _RADIX)
        self._top_radix = math.ceil(mean * _TAIL)
        self._top = Categorical(_open_digit_weights(rate, self._top_radix))

    def sample(self, n: int, rng: NoiseGenerator) -> NDArray[np.int64]:
        """``n`` independent draws, shape (n,); meant for blocks of some ten thousand."""
        out = self._sample_top(n, rng)
        out *= self._units[-1]
        for digit, unit in zip(self._digits, self._units, strict=False):
            value = digit.sample(n, rng)
            value *= unit
            out += value
        return out

    def _sample_top(self, n: int, rng: NoiseGenerator) -> NDArray[np.int64]:
        out = self._top.sample(n, rng).astype(np.int64, copy=False)
        open_ended = np.flatnonzero(out == self._top_radix)
        while open_ended.size:
            more = self._top.sample(open_ended.size, rng)
            out[open_ended] += more
            open_ended = open_ended[more == self._top_radix]
        return out


@lru_cache(maxsize=64)
def geometric(rate: Decimal) -> Geometric:
    """The sampler for ``rate``, built once."""
    return Geometric(rate)


def _digit_weights(rate: Decimal) -> list[int]:
    """Weights of a digit in [0, 1024), ∝ e^(−digit·rate)."""
    whole = CONTEXT.subtract(1, exp_neg(CONTEXT.multiply(rate, _RADIX)))
    # P(digit ≥ i) = (e^(−i·rate) − e^(−1024·rate)) / (1 − e^(−1024·rate))
    at_least = [
        round_up(CONTEXT.divide(CONTEXT.add(CONTEXT.subtract(power, 1), whole), whole), BITS)
        for power in _powers(rate, _RADIX)
    ]
    return [a - b for a, b in zip(at_least, [*at_least[1:], 0], strict=True)]


def _open_digit_weights(rate: Decimal, radix: int) -> list[int]:
    """Weights of a digit in [0, radix) and, last, of "radix or more"."""
    at_least = [round_up(power, BITS) for power in _powers(rate, radix + 1)]
    return [a - b for a, b in zip(at_least, [*at_least[1:], 0], strict=True)]


def _powers(rate: Decimal, n: int) -> list[Decimal]:
    """e^(−i·rate) for i in [0, n)."""
    ratio, powers = exp_neg(rate), [Decimal(1)]
    for _ in range(n - 1):
        powers.append(CONTEXT.multiply(powers[-1], ratio))
    return powers
