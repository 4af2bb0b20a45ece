"""The Gaussian mechanism's privacy profile, in logarithms, for any δ that a float can hold."""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr

from murmur.privacy.accounting.lattice import Floats


def log_delta(epsilon: Floats | float, mu: float) -> Floats:
    """Logarithm of δ(ε) of one Gaussian, L2 sensitivity / σ = ``mu``; ε may be negative.

    Balle & Wang 2018, theorem 8: δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ). Shape of ``epsilon``.
    """
    epsilon = np.asarray(epsilon, dtype=np.float64)
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    with np.errstate(invalid="ignore"):
        gap = first + log1mexp(np.minimum(second - first, 0.0))
    return np.where(np.isneginf(first), -np.inf, gap)


def log_mgf(theta: float, mu: float) -> float:
    """K(θ) = ln E e^{θL} of the Gaussian's privacy loss L ~ N(μ²/2, μ²)."""
    return theta * (theta + 1) * (mu * mu) / 2


def log1mexp(x: Floats) -> Floats:
    """ln(1 − e^x) for x ≤ 0."""
    with np.errstate(divide="ignore"):
        return np.where(x > -0.7, np.log(-np.expm1(x)), np.log1p(-np.exp(x)))
