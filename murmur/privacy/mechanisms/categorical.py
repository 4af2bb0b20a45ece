"""An exact, vectorised sampler for a distribution on a few integers.

Inversion of the cumulative distribution, a few bits at a time: the first 16 random bits settle
almost every draw through a table; the draws that fall into a table cell in which the cumulative
distribution has a step take 48 more bits, and those that hit the step's first 64 bits take
another 64. The result is exactly what comparing 128 random bits with 128-bit thresholds gives.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from murmur.privacy.noise import NoiseGenerator

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
