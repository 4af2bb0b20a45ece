"""Elementary releases whose privacy loss has finitely many values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from murmur.privacy.accounting import laplace, randomized_response, shuffle, summed_gaussians
from murmur.privacy.accounting.bits import epsilon_of_bit
from murmur.privacy.accounting.flatten import pure_epsilon
from murmur.privacy.accounting.lattice import LatticeLoss
from murmur.privacy.events import (
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
    SummedEvent,
)

# Above this ε0 the clones' probability e^{−ε0} is too small to hide anything or to represent.
_UNSHUFFLED = 300.0


@lru_cache(maxsize=1024)
def lattice_loss(leaf: Event) -> LatticeLoss | None:
    """The worst privacy loss of one elementary release; None if it is not on a lattice."""
    if isinstance(leaf, RandomizedResponseEvent):
        return randomized_response.loss(leaf.epsilon, leaf.categories)
    if isinstance(leaf, PureEvent):
        # Binary randomised response is the worst ε-DP release (Kairouz, Oh, Viswanath 2015).
        return randomized_response.loss(leaf.epsilon, 2)
    if isinstance(leaf, RandomizedBitsEvent):
        return randomized_response.loss(epsilon_of_bit(leaf.gamma), 2, leaf.sensitivity_bits)
    if isinstance(leaf, LaplaceEvent):
        return laplace.loss(leaf)
    if isinstance(leaf, SummedEvent) and isinstance(leaf.event, DiscreteGaussianEvent):
        return summed_gaussians.loss(leaf.event, leaf.honest_clients)
    if isinstance(leaf, ShuffledEvent):
        pure = pure_epsilon(leaf.event)
        if pure is not None and pure > _UNSHUFFLED:
            return lattice_loss(leaf.event)
        if pure is not None:
            return shuffle.loss(leaf.event, pure, leaf.honest_clients)
    return None


def split(
    leaves: Mapping[Event, int],
) -> tuple[list[LatticeLoss], float, dict[Event, int]]:
    """``leaves`` as finite losses, the μ of one Gaussian, and what is neither."""
    parts, gaussian_mu, rest = [], 0.0, {}
    for leaf, count in leaves.items():
        part = lattice_loss(leaf)
        if part is not None:
            parts.append(replace(part, count=part.count * count))
        elif isinstance(leaf, GaussianEvent):
            gaussian_mu = math.hypot(gaussian_mu, math.sqrt(count) / leaf.noise_multiplier)
        else:
            rest[leaf] = count
    return parts, gaussian_mu, rest
