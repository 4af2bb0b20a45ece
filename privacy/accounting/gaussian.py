"""The Gaussian mechanism: exact ε and δ, smallest noise, and the classical constant.

n releases with noise multipliers m_i (σ / L2 sensitivity) are, exactly, one release with
1/m² = Σ 1/m_i²: L equal ones have sensitivity Δ√L (Dong, Roth, Su 2022, corollary 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from privacy.accounting import hockey_stick, privacy_loss
from privacy.accounting.search import decreasing_root


def combined_noise_multiplier(multipliers: Iterable[float]) -> float:
    """Noise multiplier of the single Gaussian release that many amount to; inf for none."""
    mu = math.hypot(*(1 / multiplier for multiplier in multipliers))
    return 1 / mu if mu else math.inf


def epsilon(noise_multiplier: float, delta: float, count: int = 1) -> float:
    """Exact ε of ``count`` releases at ``delta`` (Balle & Wang 2018, theorem 8)."""
    return privacy_loss.epsilon([], delta, math.sqrt(count) / noise_multiplier)


def delta(noise_multiplier: float, epsilon: float, count: int = 1) -> float:
    """Exact δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), μ = √count / noise_multiplier."""
    mu = math.sqrt(count) / noise_multiplier
    return math.exp(min(0.0, float(hockey_stick.log_delta(epsilon, mu))))


def noise_multiplier(epsilon: float, delta: float, count: int = 1) -> float:
    """The smallest σ/Δ with which ``count`` releases are (``epsilon``, ``delta``)-DP together.

    Raises ValueError for ε not above 0 or δ not in (0, 1).
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon={epsilon}: must be finite and above 0")
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta}: must lie in (0, 1)")
    log_delta = math.log(delta)

    def excess(log_multiplier: float) -> float:
        mu = math.exp(-log_multiplier)
        return float(hockey_stick.log_delta(epsilon, mu)) - log_delta

    # The classical constant is enough for ε < 1; √2-fold of it plus 1 always is.
    safe = math.log(classical_constant(delta) / epsilon + 1 / math.sqrt(2 * epsilon) + 1)
    return math.exp(decreasing_root(excess, -40.0, safe)) * math.sqrt(count)


def classical_constant(delta: float) -> float:
    """The constant c = √(2 ln(1.25/δ)): σ = cΔ/ε is (ε, δ)-DP for ε < 1 only."""
    return math.sqrt(2 * math.log(1.25 / delta))
