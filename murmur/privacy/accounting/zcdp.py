"""Zero-concentrated differential privacy: ρ of elementary releases, and its conversion.

Bun & Steinke 2016: ρ adds up under composition; ε-DP is ε²/2-zCDP; a Gaussian with noise
multiplier m is 1/(2m²)-zCDP, and so is the discrete one (Canonne, Kamath, Steinke 2020).
Ours, since dp-accounting has no zCDP accountant for discrete noise on any grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from murmur.privacy.accounting.bits import epsilon_of_bit
from murmur.privacy.accounting.flatten import pure_epsilon
from murmur.privacy.accounting.search import decreasing_root, minimum, require_budget
from murmur.privacy.events import (
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    RandomizedBitsEvent,
    SummedEvent,
)


def rho(leaves: Mapping[Event, int]) -> float:
    """ρ of elementary releases with their counts; inf if one of them has none."""
    return sum(count * _rho(leaf) for leaf, count in leaves.items())


def to_epsilon(rho: float, delta: float) -> float:
    """ε = ρ + 2√(ρ ln(1/δ)) (Bun & Steinke 2016, proposition 1.3)."""
    return rho + 2 * math.sqrt(-rho * math.log(delta))


def delta(rho: float, epsilon: float) -> float:
    """The δ at which ρ-zCDP gives (``epsilon``, δ)-DP, at most 1.

    The least over α of e^((α−1)(αρ−ε)) · (1 − 1/α)^α / (α − 1) (Canonne, Kamath, Steinke 2020,
    corollary 13); every α gives a valid bound, so that its search need not be exact.
    """
    return math.exp(min(0.0, _log_delta(rho, epsilon)))


def _log_delta(rho: float, epsilon: float) -> float:
    def log_delta(log_excess: float) -> float:
        excess = math.exp(log_excess)  # α − 1
        alpha = 1 + excess
        return excess * (alpha * rho - epsilon) - log_excess - alpha * math.log1p(1 / excess)

    # The exponent grows like α²ρ, hence the best α is near ε/2ρ; the rest is a wide margin.
    return log_delta(minimum(log_delta, -20.0, math.log1p(epsilon / rho) + 20.0))


def largest_rho(epsilon: float, delta_allowed: float) -> float:
    """The largest ρ, to a relative 10⁻¹², that implies (``epsilon``, ``delta_allowed``)-DP.

    Raises ValueError for an ε not finite and above 0, or a δ not in (0, 1).
    """
    require_budget(epsilon, delta_allowed)

    def excess(negative_log_rho: float) -> float:
        return _log_delta(math.exp(-negative_log_rho), epsilon) + tail

    # The classical ε = ρ + 2√(ρ ln(1/δ)) is the weaker bound, hence a ρ to start from.
    tail = -math.log(delta_allowed)
    start = -2 * math.log(math.sqrt(epsilon + tail) - math.sqrt(tail))
    low = start - math.log(2)
    while excess(low) <= 0:
        low -= math.log(2)
    return math.exp(-decreasing_root(excess, low, start, 1e-13))


def _rho(leaf: Event) -> float:
    if isinstance(leaf, GaussianEvent):
        return _half_square(1 / leaf.noise_multiplier)
    if isinstance(leaf, DiscreteGaussianEvent):
        return _half_square(leaf.sensitivity / leaf.sigma)
    if isinstance(leaf, RandomizedBitsEvent):
        return leaf.sensitivity_bits * _half_square(epsilon_of_bit(leaf.gamma))
    if isinstance(leaf, SummedEvent):
        return _rho(leaf.event)
    pure = pure_epsilon(leaf)
    return math.inf if pure is None else _half_square(pure)


def _half_square(x: float) -> float:
    # x * x, because x**2 raises where it overflows.
    return x * x / 2
