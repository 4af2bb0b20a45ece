"""Rényi differential privacy: curves of elementary releases, composition, conversion to ε.

Orders α are searched on a fixed lattice, α − 1 = e^{i/200}: off by at most a quarter of a
percent from the best order, where ε is flat (3e-6 relative), and every value can be cached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from privacy.accounting import randomized_response
from privacy.accounting.flatten import pure_epsilon
from privacy.events import (
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    PureEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
)

_PER_E_FOLD = 200
_LOWEST, _HIGHEST = -20 * _PER_E_FOLD, 14 * _PER_E_FOLD


def to_epsilon(divergence: float, order: float, delta: float) -> float:
    """ε at ``delta`` from D_α ≤ ``divergence`` (Canonne, Kamath, Steinke 2020, prop. 12)."""
    excess = order - 1
    return divergence - math.log1p(1 / excess) - (math.log(delta) + math.log(order)) / excess


def to_epsilon_mironov(divergence: float, order: float, delta: float) -> float:
    """ε at ``delta`` from D_α ≤ ``divergence`` (Mironov 2017, prop. 3), as papers use it."""
    return divergence - math.log(delta) / (order - 1)


def to_log_delta(divergence: float, order: float, epsilon: float) -> float:
    """Logarithm of δ(ε) from D_α ≤ ``divergence``, the inverse of ``to_epsilon``."""
    excess = order - 1
    return excess * (divergence - epsilon - math.log1p(1 / excess)) - math.log(order)


def epsilon(
    leaves: Mapping[Event, int],
    delta: float,
    conversion: Callable[[float, float, float], float] = to_epsilon,
) -> float:
    """ε of elementary releases with their counts (``flatten``), best order; inf if unknown."""
    return max(0.0, _best(leaves, lambda d, order: conversion(d, order, delta)))


def delta(leaves: Mapping[Event, int], epsilon: float) -> float:
    """δ(``epsilon``) of elementary releases with their counts; 1 if unknown."""
    return math.exp(min(0.0, _best(leaves, lambda d, order: to_log_delta(d, order, epsilon))))


def divergence(leaf: Event, order: float) -> float:
    """D_α of one elementary release at one order; inf where none is known."""
    if isinstance(leaf, GaussianEvent):
        return order / (2 * leaf.noise_multiplier**2)
    if isinstance(leaf, DiscreteGaussianEvent):
        # The divergence of the discrete Gaussian is below that of the continuous one.
        return order * (leaf.sensitivity / leaf.sigma) ** 2 / 2
    if isinstance(leaf, RandomizedResponseEvent):
        return _randomized_response(leaf.epsilon, leaf.categories, order)
    if isinstance(leaf, PureEvent):
        # Binary randomised response is the worst ε-DP release (Kairouz, Oh, Viswanath 2015).
        return _randomized_response(leaf.epsilon, 2, order)
    if isinstance(leaf, RandomizedBitsEvent):
        one_bit = math.log1p(2 * leaf.gamma) - math.log1p(-2 * leaf.gamma)
        return leaf.sensitivity_bits * _randomized_response(one_bit, 2, order)
    pure = pure_epsilon(leaf)
    return math.inf if pure is None else _randomized_response(pure, 2, order)


def _randomized_response(epsilon: float, categories: int, order: float) -> float:
    value = randomized_response.renyi_divergence(epsilon, categories, np.array([order]))
    return float(value[0])


@lru_cache(maxsize=200_000)
def _on_lattice(leaf: Event, index: int) -> float:
    return divergence(leaf, _order(index))


def _order(index: int) -> float:
    return 1 + math.exp(index / _PER_E_FOLD)


def _best(leaves: Mapping[Event, int], target: Callable[[float, float], float]) -> float:
    """The smallest ``target(D_α, α)`` over the lattice of orders, by refinement."""

    def value(index: int) -> float:
        total = sum(count * _on_lattice(leaf, index) for leaf, count in leaves.items())
        return target(total, _order(index)) if math.isfinite(total) else math.inf

    low, high, stride = _LOWEST, _HIGHEST, 128
    best = low
    while stride >= 1:
        best = min(range(low, high + 1, stride), key=value)
        low, high = max(_LOWEST, best - stride), min(_HIGHEST, best + stride)
        stride //= 8
    return value(best)
