"""From events to ε at δ: every proven bound that applies, and the smallest of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from privacy.accounting import privacy_loss, randomized_response, rdp
from privacy.accounting.flatten import flatten, pure_epsilon
from privacy.accounting.threat import Adjacency, Threat
from privacy.events import (
    Event,
    GaussianEvent,
    NonPrivateEvent,
    PureEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
)

_METHODS = {
    "basic": "basic composition",
    "exact": "exact privacy-loss distribution",
    "rdp": "Rényi differential privacy",
    "zcdp": "zero-concentrated differential privacy",
    "none": "no protection",
}


@dataclass(frozen=True)
class Spend:
    """What events cost: ``epsilon`` at ``delta`` against ``threat``.

    ``epsilon`` is the smallest of ``bounds`` (by method), each of which is proven; ``method``
    says in words where it comes from. Infinite for a release without protection.
    """

    epsilon: float
    delta: float
    threat: Threat
    method: str
    bounds: dict[str, float]


def epsilon(
    event: Event,
    delta: float,
    threat: Threat = Threat.LOCAL,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> Spend:
    """What ``event`` costs a unit at ``delta`` in [0, 1), as ``threat`` sees it.

    ``adjacency`` matters for Poisson sampling only, which is no help under replace-one here.
    Raises ValueError for a ``delta`` out of range.
    """
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta}: must lie in [0, 1)")
    spend = _epsilon(event, float(delta), Threat(threat), Adjacency(adjacency))
    return replace(spend, bounds=dict(spend.bounds))


@lru_cache(maxsize=4096)
def _epsilon(event: Event, delta: float, threat: Threat, adjacency: Adjacency) -> Spend:
    leaves = flatten(event, threat, adjacency)
    if any(isinstance(leaf, NonPrivateEvent) for leaf in leaves):
        return Spend(math.inf, delta, threat, _METHODS["none"], {"none": math.inf})
    bounds = {"basic": _basic(leaves, delta)}
    if delta > 0:
        bounds["rdp"] = rdp.epsilon(leaves, delta)
    exact = _exact_parts(leaves)
    if exact is not None:
        bounds["exact"] = privacy_loss.epsilon(exact[0], delta, exact[1])
    bounds = {name: bound for name, bound in bounds.items() if math.isfinite(bound)}
    if not bounds:
        return Spend(math.inf, delta, threat, _METHODS["none"], {"none": math.inf})
    best = min(bounds, key=lambda name: bounds[name])
    return Spend(bounds[best], delta, threat, _METHODS[best], bounds)


def delta(
    event: Event,
    epsilon: float,
    threat: Threat = Threat.LOCAL,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> float:
    """The smallest proven δ at which ``event`` costs at most ``epsilon``; in [0, 1]."""
    if not epsilon >= 0:
        raise ValueError(f"epsilon={epsilon}: must be at least 0")
    leaves = flatten(event, threat, adjacency)
    if any(isinstance(leaf, NonPrivateEvent) for leaf in leaves):
        return 1.0
    if _basic(leaves, 0.0) <= epsilon:
        return 0.0
    bounds = [rdp.delta(leaves, epsilon)]
    exact = _exact_parts(leaves)
    if exact is not None:
        bounds.append(privacy_loss.delta(exact[0], epsilon, exact[1]))
    return min(bounds)


def _basic(leaves: Mapping[Event, int], delta: float) -> float:
    """Σ ε_i with δ shared evenly by the releases that need one."""
    needy = sum(count for leaf, count in leaves.items() if pure_epsilon(leaf) is None)
    total = 0.0
    for leaf, count in leaves.items():
        pure = pure_epsilon(leaf)
        if pure is None:
            share = delta / needy
            pure = rdp.epsilon({leaf: 1}, share) if share > 0 else math.inf
        total += count * pure
    return total


def _exact_parts(
    leaves: Mapping[Event, int],
) -> tuple[list[privacy_loss.LatticeLoss], float] | None:
    """Finite losses and the one Gaussian that ``leaves`` amount to; None if something else."""
    parts = []
    squared_mu = 0.0
    for leaf, count in leaves.items():
        if isinstance(leaf, RandomizedResponseEvent):
            parts.append(randomized_response.loss(leaf.epsilon, leaf.categories, count))
        elif isinstance(leaf, PureEvent):
            parts.append(randomized_response.loss(leaf.epsilon, 2, count))
        elif isinstance(leaf, RandomizedBitsEvent):
            one_bit = math.log1p(2 * leaf.gamma) - math.log1p(-2 * leaf.gamma)
            parts.append(randomized_response.loss(one_bit, 2, count * leaf.sensitivity_bits))
        elif isinstance(leaf, GaussianEvent):
            squared_mu += count / leaf.noise_multiplier**2
        else:
            return None
    return parts, math.sqrt(squared_mu)
