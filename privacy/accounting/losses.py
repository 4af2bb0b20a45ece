"""Elementary releases as finite privacy-loss distributions, where they are such."""

from __future__ import annotations

import math
from collections.abc import Mapping

from privacy.accounting import laplace, randomized_response, shuffle
from privacy.accounting.bits import epsilon_of_bit
from privacy.accounting.flatten import pure_epsilon
from privacy.accounting.lattice import LatticeLoss
from privacy.events import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
)


def lattice_loss(leaf: Event, count: int = 1) -> LatticeLoss | None:
    """The worst privacy loss of ``count`` elementary releases; None if it is not finite."""
    if isinstance(leaf, RandomizedResponseEvent):
        return randomized_response.loss(leaf.epsilon, leaf.categories, count)
    if isinstance(leaf, PureEvent):
        # Binary randomised response is the worst ε-DP release (Kairouz, Oh, Viswanath 2015).
        return randomized_response.loss(leaf.epsilon, 2, count)
    if isinstance(leaf, RandomizedBitsEvent):
        one_bit = epsilon_of_bit(leaf.gamma)
        return randomized_response.loss(one_bit, 2, count * leaf.sensitivity_bits)
    if isinstance(leaf, LaplaceEvent):
        return laplace.loss(leaf, count)
    if isinstance(leaf, ShuffledEvent):
        pure = pure_epsilon(leaf.event)
        if pure is not None:
            return shuffle.loss(leaf.event, pure, leaf.honest_clients, count)
    return None


def split(
    leaves: Mapping[Event, int],
) -> tuple[list[LatticeLoss], float, dict[Event, int]]:
    """``leaves`` as finite losses, the μ of one Gaussian, and what is neither."""
    parts, squared_mu, rest = [], 0.0, {}
    for leaf, count in leaves.items():
        part = lattice_loss(leaf, count)
        if part is not None:
            parts.append(part)
        elif isinstance(leaf, GaussianEvent):
            squared_mu += count / leaf.noise_multiplier**2
        else:
            rest[leaf] = count
    return parts, math.sqrt(squared_mu), rest
