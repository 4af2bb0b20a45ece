"""Exact, vectorised sampling: what a mechanism draws has the law that it states.

Probabilities are integers over a power of two, with rounding as the only error. A double carries
53 bits, so a threshold computed with it is off by up to 2⁻⁵⁴, and by far more in relative terms
where the probability is small. Thresholds are therefore computed with 60 decimal digits (199
bits), once, when a mechanism is constructed.

In this order: rounding of probabilities, uniform integers (``uniform_below``), coins of
probability e⁻ˣ (``flip_exp``), a distribution on a few integers (``Categorical``), and the
geometric distribution (``Geometric``), of which the discrete Laplace and the discrete Gaussian
are made.
"""

import bisect
import decimal
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from murmur.privacy.noise import NoiseGenerator

ONE = 1 << 64
"""The integer that stands for probability 1."""

# Exponents of any size the arguments can produce; tiny results round up to one unit anyway.
CONTEXT = decimal.Context(prec=60, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


def exp_neg(x: float | Fraction | Decimal) -> Decimal:
    """e⁻ˣ to 60 digits, for x ≥ 0."""
    return CONTEXT.exp(-to_decimal(x))


def to_decimal(x: float | Fraction | Decimal) -> Decimal:
    """``x`` to 60 digits; a float counts as the binary number that it is."""
    if isinstance(x, Fraction):
        return CONTEXT.divide(Decimal(x.numerator), Decimal(x.denominator))
    return CONTEXT.create_decimal(x)


def round_up(probability: Decimal, bits: int = 64) -> int:
    """The smallest integer number of 2⁻ᵇⁱᵗˢ units that is not below ``probability``."""
    return _scaled(probability, bits, decimal.ROUND_CEILING)


def round_down(probability: Decimal, bits: int = 64) -> int:
    """The largest integer number of 2⁻ᵇⁱᵗˢ units that is not above ``probability``."""
    return _scaled(probability, bits, decimal.ROUND_FLOOR)


def _scaled(probability: Decimal, bits: int, rounding: str) -> int:
    return int(CONTEXT.multiply(probability, Decimal(1 << bits)).to_integral_value(rounding))


def uniform_below(bound: int, n: int, rng: NoiseGenerator) -> NDArray[np.uint64]:
    """``n`` integers uniform in [0, bound), exactly, by rejection; 1 ≤ bound < 2⁶⁴."""
    if bound == 1:
        return np.zeros(n, dtype=np.uint64)
    out = np.full(n, bound, dtype=np.uint64)
    pending = np.arange(n)
    while pending.size:
        out[pending] = rng.uint64(pending.size) // np.uint64(ONE // bound)
        pending = pending[out[pending] >= bound]
    return out


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
    left = x.astype(np.float64)
    lanes = np.arange(x.size)
    while lanes.size:
        part = np.minimum(left, 16.0)
        won = bernoulli_exp(part, part.__getitem__, rng.uint64(lanes.size), rng)
        heads[lanes[~won]] = False
        more = won & (left > 16.0)
        left = left[more] - 16.0
        lanes = lanes[more]
    return heads


BITS = 128
TOTAL = 1 << BITS
"""The sum of a ``Categorical``'s weights: weight w means probability w · 2⁻¹²⁸, exactly."""

_PREFIX_BITS = 16
_UNDECIDED = -1


class Categorical:
    """Draws i with probability exactly ``weights[i]`` · 2⁻¹²⁸, for i in [0, len(weights)).

    The table takes 128 KiB. Up to about a thousand categories, fewer than 2% of the draws need
    more than the table.

    Attributes:
        weights: as given.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        """Build the table.

        Args:
            weights: between 1 and 2¹⁵ − 1 integers, each at least 0, with sum 2¹²⁸.

        Raises:
            ValueError: too many weights, a negative one, or another sum.
        """
        if not 1 <= len(weights) < 1 << 15:
            raise ValueError(f"{len(weights)} weights: must be 1 to {(1 << 15) - 1}")
        if min(weights) < 0 or sum(weights) != TOTAL:
            raise ValueError("weights: must not be negative and must sum to 2**128")
        self.weights = tuple(weights)
        # Category i holds the 128-bit numbers from the i-th step up to below the next one.
        # A step at 2¹²⁸ lies above every number: only categories of weight 0 follow it.
        steps = list(accumulate(weights))[:-1]
        self._steps = [step for step in steps if step < TOTAL]
        self._high_steps = np.array([step >> 64 for step in self._steps], dtype=np.uint64)
        first = np.arange(1 << _PREFIX_BITS, dtype=np.uint64) << np.uint64(64 - _PREFIX_BITS)
        last = first | np.uint64((1 << (64 - _PREFIX_BITS)) - 1)
        # A cell is undecided also where a step coincides with a cell's first 64-bit number,
        # because the step's lower 64 bits then count.
        below = np.searchsorted(self._high_steps, first, side="left")
        above = np.searchsorted(self._high_steps, last, side="right")
        self._table = np.where(below == above, above, _UNDECIDED).astype(np.int16)

    def sample(self, n: int, rng: NoiseGenerator) -> NDArray[np.intp]:
        """``n`` independent draws, shape (n,); meant for blocks of some ten thousand."""
        prefix = rng.uint16(n)
        found = self._table.take(prefix, mode="clip")
        undecided = np.flatnonzero(found == _UNDECIDED)
        if undecided.size:
            found[undecided] = self._decide(prefix[undecided], rng)
        return found.astype(np.intp)

    def _decide(self, prefix: NDArray[np.uint16], rng: NoiseGenerator) -> NDArray[np.intp]:
        high = rng.uint64(prefix.size) >> np.uint64(_PREFIX_BITS)
        high |= prefix.astype(np.uint64) << np.uint64(64 - _PREFIX_BITS)
        found = np.searchsorted(self._high_steps, high, side="right")
        hit = np.searchsorted(self._high_steps, high, side="left") != found
        for lane in np.flatnonzero(hit):
            number = (int(high[lane]) << 64) | int(rng.uint64(1)[0])
            found[lane] = bisect.bisect_right(self._steps, number)
        return found


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
    ratio = exp_neg(rate)
    powers = [Decimal(1)]
    for _ in range(n - 1):
        powers.append(CONTEXT.multiply(powers[-1], ratio))
    return powers
