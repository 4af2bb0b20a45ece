"""The discrete Gaussian mechanism on a grid (Canonne, Kamath and Steinke 2020).

P(X = x) ∝ e^(−x²/2σ²) on the integers. Like the continuous one it satisfies ρ-zCDP with
ρ = Δ₂²/2σ², in any number of dimensions, for the L2 sensitivity Δ₂ of what lies on the grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.events import DiscreteGaussianEvent
from privacy.mechanisms.discrete_gaussian_sampler import discrete_gaussian_sampler
from privacy.mechanisms.integer_noise import Grid, add_noise, in_steps
from privacy.mechanisms.quantization import quantized_l1_sensitivity, quantized_l2_sensitivity
from privacy.mechanisms.validation import require_positive
from privacy.noise import NoiseGenerator


@dataclass(frozen=True)
class DiscreteGaussian:
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

    def __post_init__(self) -> None:
        Grid(self.grid, self.dimension)
        in_steps("sigma", self.sigma, self.grid)
        require_positive("sensitivity", self.sensitivity)

    @property
    def sensitivity_steps(self) -> float:
        """L2 sensitivity of the integers, in grid steps, with what rounding adds."""
        return _sensitivity_steps(self.sensitivity, self.grid, self.dimension)

    def event(self) -> DiscreteGaussianEvent:
        """One release of a whole vector, in grid steps, with what rounding adds."""
        return DiscreteGaussianEvent(
            sigma=self.sigma / self.grid,
            sensitivity=self.sensitivity_steps,
            scalar=self.dimension == 1,
        )

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
        sampler = discrete_gaussian_sampler(in_steps("sigma", self.sigma, self.grid))
        return add_noise(k, sampler, rng)


def _sensitivity_steps(sensitivity: float, grid: float, dimension: int | None) -> float:
    if dimension == 1:  # a whole number, which the accountant of scalars needs
        return float(quantized_l1_sensitivity(sensitivity, grid, dimension))
    return quantized_l2_sensitivity(sensitivity, grid, dimension or 0)
