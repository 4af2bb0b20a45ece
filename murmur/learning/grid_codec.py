"""Contributions of integers on a grid: exact sums, and noise that stays what was proven of it.

Discrete noise is only as good as the arithmetic after it. Here a release is an integer number
of grid steps from the mechanism to the server's sum, so that the sum of the clients' noise has
exactly the distribution that the accountant knows; it becomes a real number only afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from murmur.learning.contribution import Integers, MalformedError, WeightCodec, require_array

LARGEST = 2**31 - 1


@dataclass(frozen=True)
class GridCodec:
    """``size`` integers in steps of ``grid``: int32 on the wire, 64 bits when summed.

    Attributes:
        size: number of entries d.
        grid: what one step stands for.
        bound: the largest absolute value of an entry, at most 2³¹ − 1.
        spread: how much of the bound is there for independent noise around 0, many standard
            deviations of it; n entries then need √n times that and no more. For contributions of
            weight 1.
    """

    size: int
    grid: float = 1.0
    bound: int = LARGEST
    spread: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.bound <= LARGEST:
            raise ValueError(f"bound={self.bound}: must lie in 1..{LARGEST}")
        if not 0 <= self.spread <= self.bound:
            raise ValueError(f"spread={self.spread}: must lie in 0..{self.bound}, the bound")

    @property
    def shape(self) -> tuple[int]:
        """(size,)."""
        return (self.size,)

    @property
    def packed_bytes(self) -> int:
        """Four for each integer."""
        return 4 * self.size

    def pack(self, release: NDArray) -> NDArray[np.int32]:
        """Integers (size,) as int32; what is beyond the bound is cut to it."""
        return np.clip(release, -self.bound, self.bound).astype(np.int32)

    def expand(self, packed: NDArray, weight: int) -> Integers:
        """The integers, times ``weight``."""
        require_array(packed, np.int32, self.shape)
        return self._within(packed.astype(np.int64), 1) * weight

    def check_total(self, total: NDArray, weight: int) -> Integers:
        """Every sum lies within weight · bound."""
        require_array(total, np.int64, self.shape)
        return self._within(total, weight)

    def limits(self, weight: int) -> tuple[int, int]:
        """± weight · bound, of which noise grows by the root of the weight."""
        noise = math.isqrt(self.spread**2 * weight - 1) + 1 if self.spread else 0
        most = (self.bound - self.spread) * weight + noise
        return -most, most

    @property
    def capacity(self) -> int:
        """Total weight W with W · bound below 2⁶⁰, which leaves room for the server's noise."""
        return 2**60 // self.bound

    def mean(self, total: NDArray, weight: float) -> NDArray[np.float64]:
        """What ``total`` stands for, divided by ``weight``."""
        return total * (self.grid / weight)

    def _within(self, values: Integers, weight: int) -> Integers:
        least, greatest = self.limits(weight)
        if values.size and not least <= int(values.min()) <= int(values.max()) <= greatest:
            raise MalformedError(
                f"an integer exceeds what a weight of {weight} can sum to, {greatest} grid steps"
            )
        return values


def vector_codec(size: int, bound: int | None) -> WeightCodec | GridCodec:
    """The form of vectors (size,): integers up to ``bound``, or real numbers where it is None."""
    return WeightCodec(size) if bound is None else GridCodec(size, bound=bound)
