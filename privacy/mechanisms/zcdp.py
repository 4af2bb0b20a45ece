"""From zero-concentrated DP to (ε, δ) and back, for calibration.

A ρ-zCDP mechanism is (ε, δ)-DP with δ = min over α > 1 of
e^((α−1)(αρ−ε)) · (1 − 1/α)^α / (α − 1): Canonne, Kamath and Steinke (2020), corollary 13.
"""

from __future__ import annotations

import math

from privacy.mechanisms.validation import require_positive, require_probability


def zcdp_delta(rho: float, epsilon: float) -> float:
    """The δ at which ρ-zCDP gives (``epsilon``, δ)-DP, at most 1.

    Every order α gives a valid bound, so that the search for the best one need not be exact.
    """

    def log_delta(log_excess: float) -> float:
        excess = math.exp(log_excess)  # α − 1
        alpha = 1 + excess
        return excess * (alpha * rho - epsilon) - log_excess - alpha * math.log1p(1 / excess)

    # The exponent grows like α²ρ, hence the best α is near ε/2ρ; the rest is a wide margin.
    low, high = -20.0, math.log1p(epsilon / rho) + 20.0
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(120):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if log_delta(left) < log_delta(right):
            high = right
        else:
            low = left
    return math.exp(min(0.0, log_delta((low + high) / 2)))


def zcdp_from_epsilon_delta(epsilon: float, delta: float) -> float:
    """The largest ρ, to a relative 10⁻¹², that implies (``epsilon``, ``delta``)-DP.

    Raises:
        ValueError: ``epsilon`` is not finite and above 0, or ``delta`` not in (0, 1).
    """
    require_positive("epsilon", epsilon)
    require_probability("delta", delta)
    # The classical ε = ρ + 2√(ρ ln(1/δ)) is the weaker bound, hence a ρ to start from.
    low = (math.sqrt(epsilon - math.log(delta)) - math.sqrt(-math.log(delta))) ** 2
    high = 2 * low
    while zcdp_delta(high, epsilon) <= delta:
        high *= 2
    while high > low * (1 + 1e-12):
        middle = math.sqrt(low) * math.sqrt(high)
        if zcdp_delta(middle, epsilon) <= delta:
            low = middle
        else:
            high = middle
    return low
