"""The discrete Gaussian mechanism on a grid (Canonne, Kamath and Steinke 2020).

P(X = x) ∝ e^(−x²/2σ²) on the integers. Like the continuous one it satisfies ρ-zCDP with
ρ = Δ₂²/2σ², in any number of dimensions, for the L2 sensitivity Δ₂ of what lies on the grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.privacy.events import LONGEST_VECTOR, DiscreteGaussianEvent
from murmur.privacy.mechanisms.discrete_gaussian_sampler import (
    DiscreteGaussianSampler,
    discrete_gaussian_sampler,
)
from murmur.privacy.mechanisms.integer_noise import GridMechanism, in_steps
from murmur.privacy.mechanisms.quantization import (
    quantized_l1_sensitivity,
    quantized_l2_sensitivity,
)
from murmur.privacy.noise import NoiseGenerator


@dataclass(frozen=True)
class DiscreteGaussian(GridMechanism):
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
            return float(quantized_l1_sensitivity(self.sensitivity, self.grid, 1))
        return quantized_l2_sensitivity(self.sensitivity, self.grid, self.dimension or 0)

    def event(self) -> DiscreteGaussianEvent:
        """One release of a whole vector, in grid steps, with what rounding adds."""
        return DiscreteGaussianEvent(
            sigma=self.sigma / self.grid,
            sensitivity=self.sensitivity_steps,
            scalar=self.dimension == 1,
        )

    def privatize_integers(self, k: NDArray[Any], rng: NoiseGenerator) -> NDArray[np.int64]:
        """Add noise to ``k``, integers in grid steps; the result can be summed exactly.

        Raises:
            ValueError: ``k`` has more than 2²⁶ numbers, does not hold integers, or one is beyond
                ±2⁶⁰.
        """
        if np.size(k) > LONGEST_VECTOR:
            raise ValueError(
                f"k of {np.size(k)} numbers: must have 2**26 at most, since more are accounted for "
                "by no proof; release a part of them, such as a low-rank adapter"
            )
        return super().privatize_integers(k, rng)

    def _scale(self) -> Fraction:
        return in_steps("sigma", self.sigma, self.grid)

    def _sampler(self) -> DiscreteGaussianSampler:
        return discrete_gaussian_sampler(self._scale())
