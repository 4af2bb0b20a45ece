"""The discrete Laplace (two-sided geometric) mechanism on a grid.

P(X = x) = (1−r)/(1+r) · r^|x| with r = e^(−step/scale): Ghosh, Roughgarden and Sundararajan
(2009). Pure ε-DP with ε = Δ₁/scale, for the L1 sensitivity Δ₁ of what lies on the grid.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from murmur.checks import require_positive
from murmur.privacy.events import LaplaceEvent
from murmur.privacy.mechanisms import exact_sampling as sampling
from murmur.privacy.mechanisms.grid import GridMechanism, in_steps, quantized_l1_sensitivity
from murmur.privacy.noise import NoiseGenerator


@dataclass(frozen=True)
class DiscreteLaplace(GridMechanism):
    """Rounds to a grid and adds discrete Laplace noise, in integers.

    Every output's probability is within 2⁻⁶⁴ of the ideal one. Nothing is cut off in the tails,
    and the logarithm of the ratio of two outputs' probabilities, which is what pure DP bounds,
    is off by less than 2⁻⁶⁴ for ε up to 10⁶.

    Attributes:
        scale: b, in the units of x; 1/16 to 2⁴⁰ grid steps.
        sensitivity: L1 sensitivity Δ₁ of x before rounding, in the units of x.
        grid: the step, a power of two.
        dimension: number of entries of x, which rounding needs: the sensitivity grows by one
            step for each. None if x lies on the grid already; anything else is then refused.
    """

    scale: float
    sensitivity: float
    grid: float = 1.0
    dimension: int | None = None

    @classmethod
    def calibrated(
        cls, epsilon: float, sensitivity: float, grid: float = 1.0, dimension: int | None = None
    ) -> "DiscreteLaplace":
        """The mechanism with privacy ``epsilon``, the growth through rounding included.

        Raises:
            ValueError: an argument is out of range, or the grid does not suit the scale.
        """
        noise = cls(grid, sensitivity, grid, dimension)  # of one step, which any grid has
        return replace(noise, scale=laplace_scale(epsilon, noise.sensitivity_steps * grid))

    @property
    def sensitivity_steps(self) -> int:
        """L1 sensitivity of the integers, in grid steps, with what rounding adds."""
        return quantized_l1_sensitivity(self.sensitivity, self.grid, self.dimension or 0)

    @property
    def epsilon(self) -> float:
        """Pure ε, with the sensitivity that rounding adds."""
        return 1 / self.event().noise_multiplier

    def event(self) -> LaplaceEvent:
        """One release of a whole vector."""
        steps = self.sensitivity_steps
        return LaplaceEvent(self.scale / (steps * self.grid), sensitivity_steps=steps)

    def _scale(self) -> Fraction:
        return in_steps("scale", self.scale, self.grid)

    def _sampler(self) -> "DiscreteLaplaceSampler":
        return discrete_laplace_sampler(self._scale())


class DiscreteLaplaceSampler:
    """Integers with P(X = x) ∝ e^(−|x|/scale): a sign or 0, times 1 plus a geometric variable."""

    def __init__(self, scale: Fraction) -> None:
        rate = sampling.to_decimal(1 / scale)
        # P(X > 0) = P(X < 0) = r/(1 + r), and given either, |X| − 1 is geometric.
        ratio = sampling.exp_neg(rate)
        side = sampling.round_up(
            sampling.CONTEXT.divide(ratio, sampling.CONTEXT.add(ratio, 1)), sampling.BITS
        )
        self._signs = sampling.Categorical([sampling.TOTAL - 2 * side, side, side])
        self._beyond = sampling.geometric(rate)

    def sample(self, n: int, rng: NoiseGenerator) -> NDArray[np.int64]:
        """``n`` independent draws, shape (n,); meant for blocks of some ten thousand."""
        out = self._beyond.sample(n, rng)
        out += 1
        out *= np.array([0, 1, -1]).take(self._signs.sample(n, rng), mode="clip")
        return out


@lru_cache(maxsize=64)
def discrete_laplace_sampler(scale: Fraction) -> DiscreteLaplaceSampler:
    """The sampler for ``scale``, built once."""
    return DiscreteLaplaceSampler(scale)


def laplace_scale(epsilon: float, sensitivity: float) -> float:
    """The scale Δ₁/ε, rounded such that no rounding takes the ε of it past ``epsilon``.

    Raises:
        ValueError: ``epsilon`` or ``sensitivity`` is not finite and above 0.
    """
    require_positive("epsilon", epsilon)
    require_positive("sensitivity", sensitivity)
    scale = sensitivity / epsilon
    while 1 / (scale / sensitivity) > epsilon:
        scale = math.nextafter(scale, math.inf)
    return scale
