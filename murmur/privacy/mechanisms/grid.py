"""Real vectors as integers on a grid, noise in integers, and what that does to sensitivity.

Floating-point noise on floating-point data leaks through the gaps between doubles (Mironov
2012), so real-valued mechanisms quantise first. Rounding moves two neighbouring inputs apart by
less than one grid step more per coordinate: the functions here say by how much in all.
``GridMechanism`` is what the discrete Laplace and the discrete Gaussian mechanism share.
"""

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from murmur.checks import is_within, require_finite, require_positive
from murmur.privacy.noise import NoiseGenerator

_MAX_EXACT_INTEGER = 2.0**52  # up to here every integer is a double and rounding is exact
_SUM_TOLERANCE = 1e-6


def require_grid(grid: float) -> None:
    """Raise ValueError unless ``grid`` is a power of two, which makes x/grid exact."""
    require_positive("grid", grid)
    if math.frexp(grid)[0] != 0.5:
        nearest = round(math.log2(grid))
        raise ValueError(
            f"grid={grid}: must be a power of two, so that dividing by it is exact; "
            f"take 2.0**{nearest} = {2.0**nearest}"
        )


def quantize_nearest(x: ArrayLike, grid: float) -> NDArray[np.int64]:
    """The nearest integer multiples of ``grid``, as integers; ties go to the even one.

    Args:
        x: finite real numbers of any shape.
        grid: the step, a power of two.

    Returns:
        round(x / grid), same shape.

    Raises:
        ValueError: ``grid`` is no power of two, or ``x`` is not finite or beyond 2⁵² steps.
    """
    require_grid(grid)
    values = np.asarray(x, dtype=np.float64)
    require_finite("x", values)
    steps = values / grid
    if steps.size and np.abs(steps).max() > _MAX_EXACT_INTEGER:
        raise ValueError(f"grid={grid}: x exceeds 2**52 grid steps; use a coarser grid")
    return np.rint(steps).astype(np.int64)


def quantized_l1_sensitivity(sensitivity: float, grid: float, dimension: int) -> int:
    """L1 sensitivity, in grid steps, of a quantised vector of ``dimension`` coordinates.

    Rounding a and b gives integers no further apart than |a − b|/grid + 1: in all,
    ⌈sensitivity/grid⌉ + dimension.

    Args:
        sensitivity: L1 sensitivity of the real vector, in the units of x.
        grid: the step.
        dimension: number of coordinates in which neighbours can differ.
    """
    return math.ceil(Fraction(sensitivity) / Fraction(grid)) + dimension


def quantized_l2_sensitivity(sensitivity: float, grid: float, dimension: int) -> float:
    """L2 sensitivity, in grid steps: sensitivity/grid + √dimension, by the same argument.

    Args:
        sensitivity: L2 sensitivity of the real vector, in the units of x.
        grid: the step.
        dimension: number of coordinates in which neighbours can differ.
    """
    return sensitivity / grid + math.sqrt(dimension)


def quantize_simplex(p: ArrayLike, total: int) -> NDArray[np.int64]:
    """Probability vectors as non-negative integers that sum to ``total``, exactly.

    Largest remainders: round down, then give what is missing to the largest fractional parts,
    the first of equals first. No coordinate moves by a whole step. Two results are at L1
    distance 2·total at most, whatever the inputs: quantising adds nothing to the sensitivity
    2 of arbitrary probability vectors.

    Args:
        p: probability vectors, shape (…, d), summing to 1 within 10⁻⁶; a row is divided by
            its sum first.
        total: the sum T, 1 to 2⁴⁰; the grid is 1/T.

    Returns:
        Integers near p·T, shape (…, d).

    Raises:
        ValueError: a row is not on the simplex, or ``total`` is out of range.
    """
    if not 1 <= total <= 1 << 40:
        raise ValueError(f"total={total}: must lie in [1, 2**40]")
    rows = np.asarray(p, dtype=np.float64)
    if rows.ndim == 0 or rows.shape[-1] == 0:
        raise ValueError(f"p of shape {rows.shape}: the last axis must have an entry")
    require_finite("p", rows)
    sums = rows.sum(axis=-1, keepdims=True)
    if np.any(rows < 0) or np.any(np.abs(sums - 1) > _SUM_TOLERANCE):
        raise ValueError(
            "p: every row must be non-negative and sum to 1 (softmax or project first)"
        )
    scaled = rows / sums * total
    floor = np.floor(scaled)
    missing = total - floor.sum(axis=-1, keepdims=True)
    order = np.argsort(floor - scaled, axis=-1, kind="stable")
    rank = np.argsort(order, axis=-1, kind="stable")
    return (floor + (rank < missing)).astype(np.int64)


def quantized_simplex_sensitivity(total: int, dimension: int, change: float = 2.0) -> int:
    """L1 sensitivity, in steps of 1/total, of ``quantize_simplex``.

    Largest remainders move a vector by L1 dimension/2 steps at most, hence two vectors apart by
    ``dimension`` more; and two vectors on the grid of the simplex are never further than 2·total.

    Args:
        total: the sum T.
        dimension: number of entries d.
        change: L1 sensitivity of the probability vector, divided by its sum: 2 for an
            arbitrary one, 2/n for a mean over n records of which one is replaced.
    """
    return min(2 * total, math.ceil(Fraction(change) * total) + dimension)


_MAX_INPUT_STEPS = 1 << 60  # the noise never comes near 2⁶⁰, so that sums cannot wrap around
_BLOCK_ENTRIES = 1 << 15


class Sampler(Protocol):
    """Draws integers."""

    def sample(self, n: int, rng: NoiseGenerator) -> NDArray[np.int64]:
        """``n`` independent draws, shape (n,); meant for blocks of some ten thousand."""


class GridMechanism(ABC):
    """Rounds to a grid and adds integer noise: a frozen value, checked when it is made."""

    sensitivity: float
    grid: float
    dimension: int | None

    def __post_init__(self) -> None:
        require_grid(self.grid)
        if self.dimension is not None and self.dimension < 1:
            raise ValueError(f"dimension={self.dimension}: must be at least 1, or None")
        self._scale()
        require_positive("sensitivity", self.sensitivity)

    @abstractmethod
    def _scale(self) -> Fraction:
        """Scale of the noise in grid steps; ValueError where it is out of range."""

    @abstractmethod
    def _sampler(self) -> Sampler:
        """Sampler of the noise."""

    def privatize(self, x: ArrayLike, rng: NoiseGenerator) -> NDArray[np.float64]:
        """Round ``x`` to the grid and add noise.

        Args:
            x: finite numbers, shape (…, dimension), or any shape if they lie on the grid; every
                vector along the last axis is one release.
            rng: the noise stream.

        Returns:
            Multiples of ``grid``, same shape.

        Raises:
            ValueError: ``x`` is not finite, beyond 2⁵² steps, of another shape, or off a grid
                that it should lie on.
        """
        values = np.asarray(x)
        integers = quantize_nearest(values, self.grid)
        if self.dimension is None:
            if not np.array_equal(integers * self.grid, values):
                raise ValueError(
                    f"grid={self.grid}: x does not lie on it, and rounding adds sensitivity; give "
                    "the mechanism the vector's dimension, so that it can account for that"
                )
        elif values.shape[-1:] != (self.dimension,):
            raise ValueError(
                f"dimension={self.dimension}: x of shape {values.shape} has another last axis"
            )
        return np.multiply(self.privatize_integers(integers, rng), self.grid, dtype=np.float64)

    def privatize_integers(
        self, k: NDArray[Any], rng: NoiseGenerator, out: NDArray[np.int64] | None = None
    ) -> NDArray[np.int64]:
        """Add noise to ``k``, integers in grid steps; the result can be summed exactly.

        ``out``: where it goes, C-contiguous, a new array by default; it may be ``k`` itself.

        Raises:
            ValueError: ``k`` does not hold integers, or one is beyond ±2⁶⁰.
        """
        sampler = self._sampler()
        k = np.asarray(k)
        if k.dtype.kind not in "iu":
            raise ValueError(f"k of dtype {k.dtype}: must hold integers")
        if not is_within(k, -_MAX_INPUT_STEPS, _MAX_INPUT_STEPS):
            raise ValueError("k: must lie within ±2**60")
        if out is None:
            out = np.empty(k.shape, np.int64)
        if out is not k:
            out[...] = k
        flat = out.reshape(-1)
        for start in range(0, flat.size, _BLOCK_ENTRIES):
            block = flat[start : start + _BLOCK_ENTRIES]
            block += sampler.sample(block.size, rng)
        return out


def in_steps(name: str, value: float, step: float) -> Fraction:
    """``value`` (a scale) in grid steps, exactly; raises ValueError where noise is no noise."""
    require_positive(name, value)
    steps = Fraction(value) / Fraction(step)
    if not Fraction(1, 16) <= steps <= 1 << 40:
        raise ValueError(
            f"{name}={value}: must lie between 1/16 and 2**40 steps of grid={step}; "
            f"choose a {'finer' if steps < 1 else 'coarser'} grid"
        )
    return steps
