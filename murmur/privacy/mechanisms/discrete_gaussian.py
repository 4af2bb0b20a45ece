"""The discrete Gaussian mechanism on a grid (Canonne, Kamath and Steinke 2020).

P(X = x) ∝ e^(−x²/2σ²) on the integers. Like the continuous one it satisfies ρ-zCDP with
ρ = Δ₂²/2σ², in any number of dimensions, for the L2 sensitivity Δ₂ of what lies on the grid.

The sampler is vectorised rejection under a staircase. The integers are cut into 0 and, on either
side, cells of equal width up to about 4.5σ; a cell is drawn with the weight of its highest point,
then a uniform integer in it, which is accepted with probability e^−(x² − start²)/2σ². At least 90%
are, and most of those by comparing 16 bits with the cell's lowest acceptance probability. Beyond
the cells, the candidate is start + y with y geometric, accepted with probability e^(−y²/2σ²): the
discrete form of Marsaglia's tail method. With σ below 32 the cells are single integers and only
the tail is ever rejected. Canonne, Kamath and Steinke reject from a discrete Laplace instead, which
needs about 1.5 times as many candidates and an exponential for each.
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.privacy.events import MAX_VECTOR_ENTRIES, DiscreteGaussianEvent
from murmur.privacy.mechanisms import exact_sampling as sampling
from murmur.privacy.mechanisms import grid as grids
from murmur.privacy.noise import NoiseGenerator

_BLOCK_ENTRIES = 1 << 15
_CELLS_END = 4.5  # in σ; 7 in a million draws come from beyond


@dataclass(frozen=True)
class DiscreteGaussian(grids.GridMechanism):
    """Rounds to a grid and adds discrete Gaussian noise, in integers.

    Every output's probability is within 2⁻⁶⁴ of the ideal one, the total variation distance of
    one coordinate below 2⁻¹¹⁵, and the tails are not cut off.

    Attributes:
        sigma: σ, in the units of x; 1/16 to 2⁴⁰ grid steps.
        sensitivity: L2 sensitivity Δ₂ of x before rounding, in the units of x.
        grid: the step, a power of two.
        dimension: number of entries d of x, which rounding needs: the sensitivity grows by √d
            steps. None if x lies on the grid already; anything else is then refused.
    """

    sigma: float
    sensitivity: float
    grid: float = 1.0
    dimension: int | None = None

    @property
    def sensitivity_steps(self) -> float:
        """L2 sensitivity of the integers, in grid steps, with what rounding adds."""
        if self.dimension == 1:  # a whole number, which the accountant of scalars needs
            return float(grids.quantized_l1_sensitivity(self.sensitivity, self.grid, 1))
        return grids.quantized_l2_sensitivity(self.sensitivity, self.grid, self.dimension or 0)

    def event(self) -> DiscreteGaussianEvent:
        """One release of a whole vector, in grid steps, with what rounding adds."""
        return DiscreteGaussianEvent(
            sigma=self.sigma / self.grid,
            sensitivity=self.sensitivity_steps,
            scalar=self.dimension == 1,
        )

    def privatize_integers(
        self, k: NDArray[Any], rng: NoiseGenerator, out: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Add noise to ``k``, integers in grid steps; the result can be summed exactly.

        ``out``: as in ``GridMechanism``.

        Raises:
            ValueError: ``k`` has more than 2²⁶ numbers, does not hold integers, or one is beyond
                ±2⁶⁰.
        """
        if np.size(k) > MAX_VECTOR_ENTRIES:
            raise ValueError(
                f"k of {np.size(k)} numbers: must have 2**26 at most, since more are accounted for "
                "by no proof; release a part of them, such as a low-rank adapter"
            )
        return super().privatize_integers(k, rng, out)

    def _scale(self) -> Fraction:
        return grids.in_steps("sigma", self.sigma, self.grid)

    def _sampler(self) -> "DiscreteGaussianSampler":
        return discrete_gaussian_sampler(self._scale())


class DiscreteGaussianSampler:
    """Integers with P(X = x) within 2⁻⁶⁴ of the discrete Gaussian's, in unbounded support.

    What separates the sampler from the ideal is the rounding of its at most 300 cells' weights
    and of its acceptance probabilities to 2⁻¹²⁸ each: the total variation distance of one draw
    is below 2⁻¹¹⁵, which is also what d draws add to a δ, times d(1 + e^ε).
    """

    def __init__(self, sigma: Fraction) -> None:
        """Build the tables; ``sigma`` lies in [1/16, 2⁴⁰] and counts integers.

        Raises:
            ValueError: ``sigma`` is out of that range.
        """
        if not Fraction(1, 16) <= sigma <= 1 << 40:
            raise ValueError(f"sigma={float(sigma)} grid steps: must lie in [1/16, 2**40]")
        self._twice_variance = 2 * sigma * sigma
        width = 1 << max(0, math.floor(math.log2(sigma)) - 4)
        cells = math.ceil(_CELLS_END * sigma / width)
        starts = [1 + i * width for i in range(cells + 1)]  # the last starts the tail
        self._width = width
        self._tail = sampling.geometric(sampling.to_decimal(2 * starts[-1] / self._twice_variance))
        self._cells = sampling.Categorical(self._weights(starts))
        # Indexed by the cell: 0, then one side's cells and tail, then the other's.
        self._start = np.array([0, *starts, *starts], dtype=np.int64)
        self._sign = np.array([0] + [1] * len(starts) + [-1] * len(starts), dtype=np.int64)
        self._is_tail = self._start == starts[-1]
        sure = [self._sure_prefixes(start) for start in starts[:-1]] + [0]
        self._sure = np.array([1 << 16, *sure, *sure], dtype=np.int32)

    def sample(self, n: int, rng: NoiseGenerator) -> NDArray[np.int64]:
        """``n`` independent draws, shape (n,)."""
        out = np.empty(n, dtype=np.int64)
        filled = 0
        while filled < n:
            missing = n - filled
            # A tenth more than is missing, to finish in one pass; what is left over is dropped.
            accepted = self._accepted(min(_BLOCK_ENTRIES, missing + missing // 10 + 8), rng)[
                :missing
            ]
            out[filled : filled + accepted.size] = accepted
            filled += accepted.size
        return out

    def _accepted(self, n: int, rng: NoiseGenerator) -> NDArray[np.int64]:
        """``n`` candidates, less the rejected ones."""
        cell = self._cells.sample(n, rng)
        prefix = rng.uint16(n)
        value = self._start.take(cell, mode="clip")
        if self._width > 1:
            value += self._offsets(n, rng)
        doubtful = np.flatnonzero(prefix >= self._sure.take(cell, mode="clip"))
        rejected = self._decide(value, cell, prefix, doubtful, rng)
        value *= self._sign.take(cell, mode="clip")
        if not rejected.size:
            return value
        keep = np.ones(n, dtype=np.bool_)
        keep[rejected] = False
        return value[keep]

    def _offsets(self, n: int, rng: NoiseGenerator) -> NDArray[np.int64]:
        """Uniform offsets within a cell."""
        bits = self._width.bit_length() - 1
        draw = rng.uint16 if bits <= 16 else rng.uint32 if bits <= 32 else rng.uint64
        return (draw(n) & (self._width - 1)).astype(np.int64)

    def _decide(
        self,
        value: NDArray[np.int64],
        cell: NDArray[np.intp],
        prefix: NDArray[np.uint16],
        doubtful: NDArray[np.intp],
        rng: NoiseGenerator,
    ) -> NDArray[np.intp]:
        """Finish the candidates at ``doubtful``, tails in place; returns the rejected ones."""
        if not doubtful.size:
            return doubtful
        is_tail = self._is_tail[cell[doubtful]]
        tails = doubtful[is_tail]
        start = self._start[cell[doubtful]]
        if tails.size:  # as in one block of five
            value[tails] = start[is_tail] + self._tail.sample(tails.size, rng)
        # x² − start² = offset·(offset + 2·start); the tail's linear part is in its proposal.
        offset = value[doubtful] - start
        other = offset + np.where(is_tail, 0, 2 * start)
        exponent = offset.astype(np.float64) * other / float(self._twice_variance)

        def exact(lane: int) -> Fraction:
            return int(offset[lane]) * int(other[lane]) / self._twice_variance

        draws = rng.uint64(doubtful.size) >> np.uint64(16)
        draws |= prefix[doubtful].astype(np.uint64) << np.uint64(48)
        return doubtful[~sampling.bernoulli_exp(exponent, exact, draws, rng)]

    def _weights(self, starts: list[int]) -> list[int]:
        """Weights of 0, of one side's cells and tail, and of the other's, with sum 2¹²⁸."""
        heights = [sampling.exp_neg(start * start / self._twice_variance) for start in starts]
        side = [sampling.CONTEXT.multiply(height, self._width) for height in heights[:-1]]
        decay = sampling.exp_neg(2 * starts[-1] / self._twice_variance)
        side.append(sampling.CONTEXT.divide(heights[-1], sampling.CONTEXT.subtract(1, decay)))
        masses = [Decimal(1), *side, *side]
        total = _sum(masses)
        # Rounding the running sums, not the weights, makes the weights' sum exact.
        steps = [0]
        running = Decimal(0)
        for mass in masses[:-1]:
            running = sampling.CONTEXT.add(running, mass)
            steps.append(
                sampling.round_down(sampling.CONTEXT.divide(running, total), sampling.BITS)
            )
        steps.append(sampling.TOTAL)
        return [upper - lower for lower, upper in pairwise(steps)]

    def _sure_prefixes(self, start: int) -> int:
        """How many of the 2¹⁶ prefixes accept whatever the offset in this cell."""
        last = self._width - 1
        return sampling.round_down(
            sampling.exp_neg(last * (last + 2 * start) / self._twice_variance), bits=16
        )


@lru_cache(maxsize=64)
def discrete_gaussian_sampler(sigma: Fraction) -> DiscreteGaussianSampler:
    """The sampler for ``sigma``, built once."""
    return DiscreteGaussianSampler(sigma)


def _sum(masses: list[Decimal]) -> Decimal:
    total = Decimal(0)
    for mass in masses:
        total = sampling.CONTEXT.add(total, mass)
    return total
