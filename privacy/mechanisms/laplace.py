"""The continuous Laplace mechanism, idealised (Dwork, McSherry, Nissim and Smith 2006)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.events import LaplaceEvent
from privacy.mechanisms.gaussian import require_idealized
from privacy.mechanisms.uniform import uniform_open
from privacy.mechanisms.validation import require_finite, require_positive
from privacy.noise import NoiseGenerator

_BLOCK = 1 << 15


@dataclass(frozen=True)
class Laplace:
    """Adds Laplace noise in floating point: the analysis holds for real numbers only.

    Attributes:
        scale: b, in the units of x; ε = Δ₁/b.
        sensitivity: L1 sensitivity Δ₁ of x.
        idealized: must be True: the gaps between doubles reveal something of x, and what is
            proven does not cover that. Statements say so.
    """

    scale: float
    sensitivity: float
    idealized: bool = False

    def __post_init__(self) -> None:
        require_positive("scale", self.scale)
        require_positive("sensitivity", self.sensitivity)
        require_idealized(self.idealized, "DiscreteLaplace")

    @classmethod
    def calibrated(cls, epsilon: float, sensitivity: float, *, idealized: bool = False) -> Laplace:
        """The mechanism with privacy ``epsilon``."""
        return cls(laplace_scale(epsilon, sensitivity), sensitivity, idealized)

    @property
    def epsilon(self) -> float:
        """Pure ε = Δ₁/b."""
        return 1 / self.event().noise_multiplier

    def event(self) -> LaplaceEvent:
        """One release of a whole vector."""
        return LaplaceEvent(self.scale / self.sensitivity, sensitivity_steps=0)

    def privatize(self, x: ArrayLike, rng: NoiseGenerator) -> NDArray[np.float64]:
        """``x`` plus independent noise in every entry, any shape; finite, at most 36b.

        Raises:
            ValueError: ``x`` holds NaN or infinities.
        """
        values = np.array(x, dtype=np.float64)
        require_finite("x", values)
        flat = values.reshape(-1)
        for start in range(0, flat.size, _BLOCK):
            block = flat[start : start + _BLOCK]
            uniform = 2 * uniform_open(block.size, rng) - 1
            # |uniform| is never 1, so the logarithm is finite.
            block -= np.copysign(self.scale * np.log1p(-np.abs(uniform)), uniform)
        return values


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
