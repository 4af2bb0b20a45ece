"""The Gaussian mechanism: exact ε and δ, and the classical constant.

n releases with noise multipliers m_i (σ / L2 sensitivity) are, exactly, one release with
1/m² = Σ 1/m_i²: L equal ones have sensitivity Δ√L (Dong, Roth, Su 2022, corollary 3.3).
"""

from __future__ import annotations

import math

from murmur.privacy.accounting import hockey_stick, privacy_loss


def epsilon(noise_multiplier: float, delta: float, count: int = 1) -> float:
    """Exact ε of ``count`` releases at ``delta`` (Balle & Wang 2018, theorem 8)."""
    return privacy_loss.epsilon([], delta, math.sqrt(count) / noise_multiplier)


def delta(noise_multiplier: float, epsilon: float, count: int = 1) -> float:
    """Exact δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), μ = √count / noise_multiplier."""
    mu = math.sqrt(count) / noise_multiplier
    return math.exp(min(0.0, float(hockey_stick.log_delta(epsilon, mu))))


def classical_constant(delta: float) -> float:
    """The constant c = √(2 ln(1.25/δ)): σ = cΔ/ε is (ε, δ)-DP for ε < 1 only."""
    return math.sqrt(2 * math.log(1.25 / delta))
