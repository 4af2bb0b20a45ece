"""Zero-concentrated differential privacy: ρ of elementary releases, and its conversion.

Bun & Steinke 2016: ρ adds up under composition; ε-DP is ε²/2-zCDP; a Gaussian with noise
multiplier m is 1/(2m²)-zCDP, and so is the discrete one (Canonne, Kamath, Steinke 2020).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from privacy.accounting.bits import epsilon_of_bit
from privacy.accounting.flatten import pure_epsilon
from privacy.events import (
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    RandomizedBitsEvent,
    SecurelySummedEvent,
)


def rho(leaves: Mapping[Event, int]) -> float:
    """ρ of elementary releases with their counts; inf if one of them has none."""
    return sum(count * _rho(leaf) for leaf, count in leaves.items())


def to_epsilon(rho: float, delta: float) -> float:
    """ε = ρ + 2√(ρ ln(1/δ)) (Bun & Steinke 2016, proposition 1.3)."""
    return rho + 2 * math.sqrt(-rho * math.log(delta))


def pure_composition(epsilon: float, count: int, delta: float) -> float:
    """ε of ``count`` ε-DP releases: min(Tε, Tε²/2 + √(2Tε² ln(1/δ)))."""
    return min(count * epsilon, to_epsilon(count * epsilon**2 / 2, delta))


def _rho(leaf: Event) -> float:
    if isinstance(leaf, GaussianEvent):
        return _half_square(1 / leaf.noise_multiplier)
    if isinstance(leaf, DiscreteGaussianEvent):
        return _half_square(leaf.sensitivity / leaf.sigma)
    if isinstance(leaf, RandomizedBitsEvent):
        return leaf.sensitivity_bits * _half_square(epsilon_of_bit(leaf.gamma))
    if isinstance(leaf, SecurelySummedEvent):
        return _rho(leaf.event)
    pure = pure_epsilon(leaf)
    return math.inf if pure is None else _half_square(pure)


def _half_square(x: float) -> float:
    # x * x, because x**2 raises where it overflows.
    return x * x / 2
