"""What the discrete Laplace and the discrete Gaussian mechanism share: noise on a grid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from murmur.common import require_positive
from murmur.privacy.mechanisms.quantization import quantize_nearest, require_grid
from murmur.privacy.noise import NoiseGenerator

_LARGEST_INPUT = 1 << 60  # the noise never comes near 2⁶⁰, so that sums cannot wrap around
_BLOCK = 1 << 15


@dataclass(frozen=True)
class Grid:
    """Where real vectors are rounded to, and how far apart that can move neighbours.

    Attributes:
        step: the distance of two grid points, a power of two.
        dimension: entries of the real vectors that are rounded to the grid; None if inputs lie
            on the grid already, which is then checked and costs no sensitivity.
    """

    step: float
    dimension: int | None

    def __post_init__(self) -> None:
        require_grid(self.step)
        if self.dimension is not None and self.dimension < 1:
            raise ValueError(f"dimension={self.dimension}: must be at least 1, or None")

    def quantize(self, x: ArrayLike) -> NDArray[np.int64]:
        """``x`` in integer grid steps; raises ValueError as ``privatize`` documents."""
        values = np.asarray(x)
        integers = quantize_nearest(values, self.step)
        if self.dimension is None:
            if not np.array_equal(integers * self.step, values):
                raise ValueError(
                    f"grid={self.step}: x does not lie on it, and rounding adds sensitivity; give "
                    "the mechanism the vector's dimension, so that it can account for that"
                )
        elif values.shape[-1:] != (self.dimension,):
            raise ValueError(
                f"dimension={self.dimension}: x of shape {values.shape} has another last axis"
            )
        return integers


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
        Grid(self.grid, self.dimension)
        self._scale()
        require_positive("sensitivity", self.sensitivity)

    @abstractmethod
    def _scale(self) -> Fraction:
        """Of the noise, in grid steps; ValueError where it is out of range."""

    @abstractmethod
    def _sampler(self) -> Sampler:
        """Of the noise."""

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
        integers = Grid(self.grid, self.dimension).quantize(x)
        return np.multiply(self.privatize_integers(integers, rng), self.grid, dtype=np.float64)

    def privatize_integers(self, k: NDArray[Any], rng: NoiseGenerator) -> NDArray[np.int64]:
        """Add noise to ``k``, integers in grid steps; the result can be summed exactly.

        Raises:
            ValueError: ``k`` does not hold integers, or one is beyond ±2⁶⁰.
        """
        return add_noise(k, self._sampler(), rng)


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


def add_noise(k: NDArray[Any], sampler: Sampler, rng: NoiseGenerator) -> NDArray[np.int64]:
    """``k`` plus one draw of ``sampler.sample(n, rng)`` per entry, as a new array.

    Raises:
        ValueError: ``k`` does not hold integers, or one is beyond ±2⁶⁰.
    """
    k = np.asarray(k)
    if k.dtype.kind not in "iu":
        raise ValueError(f"k of dtype {k.dtype}: must hold integers")
    if k.size and not -_LARGEST_INPUT <= int(k.min()) <= int(k.max()) <= _LARGEST_INPUT:
        raise ValueError("k: must lie within ±2**60")
    out = k.astype(np.int64).reshape(-1)
    for start in range(0, out.size, _BLOCK):
        block = out[start : start + _BLOCK]
        block += sampler.sample(block.size, rng)
    return out.reshape(k.shape)
