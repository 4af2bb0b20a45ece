"""The continuous Gaussian mechanism, idealised, and its analytic calibration.

Balle and Wang, "Improving the Gaussian mechanism for differential privacy" (ICML 2018), theorem
8: noise of standard deviation σ on sensitivity Δ is (ε, δ)-DP exactly where
Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ) ≤ δ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.events import GaussianEvent
from privacy.mechanisms.uniform import uniform_open
from privacy.mechanisms.validation import require_finite, require_positive, require_probability
from privacy.noise import NoiseGenerator

_BLOCK = 1 << 15


@dataclass(frozen=True)
class Gaussian:
    """Adds Gaussian noise in floating point: the analysis holds for real numbers only.

    Attributes:
        sigma: standard deviation σ, in the units of x.
        sensitivity: L2 sensitivity Δ₂ of x.
        idealized: must be True: the gaps between doubles reveal something of x, and what is
            proven does not cover that. Statements say so.
    """

    sigma: float
    sensitivity: float
    idealized: bool = False

    def __post_init__(self) -> None:
        require_positive("sigma", self.sigma)
        require_positive("sensitivity", self.sensitivity)
        require_idealized(self.idealized, "DiscreteGaussian")

    @classmethod
    def calibrated(
        cls, epsilon: float, delta: float, sensitivity: float, *, idealized: bool = False
    ) -> Gaussian:
        """The least noise that is (``epsilon``, ``delta``)-DP."""
        sigma = analytic_gaussian_sigma(epsilon, delta, sensitivity)
        return cls(sigma, sensitivity, idealized)

    def event(self) -> GaussianEvent:
        """One release of a whole vector."""
        return GaussianEvent(noise_multiplier=self.sigma / self.sensitivity)

    def privatize(self, x: ArrayLike, rng: NoiseGenerator) -> NDArray[np.float64]:
        """``x`` plus independent noise in every entry, any shape.

        The noise is cut at 8.2σ, where the inverse of Φ ends in 52 bits.

        Raises:
            ValueError: ``x`` holds NaN or infinities.
        """
        # Needs SciPy's special functions, which cost a tenth of a second to import.
        from scipy.special import ndtri

        values = np.array(x, dtype=np.float64)
        require_finite("x", values)
        flat = values.reshape(-1)
        for start in range(0, flat.size, _BLOCK):
            block = flat[start : start + _BLOCK]
            block += self.sigma * ndtri(uniform_open(block.size, rng))
        return values


def analytic_gaussian_delta(sigma: float, epsilon: float, sensitivity: float = 1.0) -> float:
    """The exact δ(ε) of the Gaussian mechanism (theorem 8), from log-CDFs.

    Raises:
        ValueError: ``sigma`` or ``sensitivity`` is not finite and above 0, or ``epsilon`` is
            negative or not finite.
    """
    from scipy.special import log_ndtr

    require_positive("sigma", sigma)
    require_positive("sensitivity", sensitivity)
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon={epsilon}: must be finite and not negative")
    half, slope = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    log_first = float(log_ndtr(half - slope))
    log_second = epsilon + float(log_ndtr(-half - slope))
    # e^first − e^second, without cancelling where both are tiny or close.
    return -math.exp(log_first) * math.expm1(min(0.0, log_second - log_first))


def analytic_gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest σ, to a relative 10⁻¹², with which noise is (``epsilon``, ``delta``)-DP.

    Raises:
        ValueError: ``epsilon`` or ``sensitivity`` is not finite and above 0, or ``delta`` not
            in (0, 1).
    """
    require_positive("epsilon", epsilon)
    require_probability("delta", delta)
    require_positive("sensitivity", sensitivity)
    low = high = 1.0
    while analytic_gaussian_delta(high, epsilon) > delta:
        low, high = high, 2 * high
    while analytic_gaussian_delta(low, epsilon) <= delta:
        low, high = low / 2, low
    while high > low * (1 + 1e-12):
        middle = (low + high) / 2
        if analytic_gaussian_delta(middle, epsilon) <= delta:
            high = middle
        else:
            low = middle
    return high * sensitivity


def require_idealized(idealized: bool, instead: str) -> None:
    """Raise ValueError unless the caller accepts noise in floating point."""
    if not idealized:
        raise ValueError(
            "idealized=False: this mechanism adds floating-point noise to floating-point data, "
            f"whose low bits leak; use {instead} with a grid, or accept it with idealized=True, "
            "which the privacy statement then says"
        )
