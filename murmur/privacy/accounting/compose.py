"""From events to ε at δ: every proven bound that applies, and the smallest of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from murmur.privacy.accounting import fine_gaussian, pld, privacy_loss, rdp, zcdp
from murmur.privacy.accounting.elementary_losses import split
from murmur.privacy.accounting.flatten import failure, flatten, pure_epsilon
from murmur.privacy.accounting.threat import Threat, View
from murmur.privacy.events import Event, GaussianEvent, NonPrivateEvent, ShuffledEvent
from murmur.privacy.neighbours import Adjacency, Unit

_METHODS = {
    "basic": "basic composition",
    "exact": "exact privacy-loss distribution",
    "pld": "privacy-loss distribution, rounded up",
    "shuffle": "privacy-loss distribution of the clone bound for shuffling",
    "rdp": "Rényi differential privacy",
    "zcdp": "concentrated differential privacy",
    "none": "no protection",
}

# Where ε is beyond this by Rényi divergence, a distribution's lattice is too coarse to gain.
_WORTH_MORE = 1e5


@dataclass(frozen=True)
class Spend:
    """What events cost: ``epsilon`` at ``delta`` against ``threat``.

    ``epsilon`` is the smallest of ``bounds`` (by method: basic, rdp, zcdp, exact, pld,
    shuffle), each of which is proven; ``method`` says in words where it comes from. Infinite
    for a release without protection.
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
    *,
    unit: Unit | None = None,
    assumptions: Iterable[str] | None = (),
) -> Spend:
    """What ``event`` costs a unit at ``delta`` in [0, 1), as ``threat`` sees it.

    ``adjacency``: of events that state none; it matters for Poisson sampling only, from which
    nothing is gained here under replace-one. ``unit``: whom the ε is for (None: what each release
    protects). ``assumptions``: names of those that are granted (None: all): without any, ε is
    proven. Raises ValueError for a ``delta`` out of range, UnsupportedEventError for an event
    that this version cannot account for.
    """
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta}: must lie in [0, 1)")
    granted = None if assumptions is None else frozenset(assumptions)
    view = View(Threat(threat), Adjacency(adjacency), unit, granted)
    spend = _epsilon(event, float(delta), view)
    return replace(spend, bounds=dict(spend.bounds))


def delta(
    event: Event,
    epsilon: float,
    threat: Threat = Threat.LOCAL,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> float:
    """The smallest proven δ at which ``event`` costs at most ``epsilon``; in [0, 1].

    Raises ValueError for an ``epsilon`` below 0.
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon={epsilon}: must be at least 0")
    view = View(Threat(threat), Adjacency(adjacency))
    return min(1.0, _delta(flatten(event, view), epsilon) + failure(event, view))


def _delta(leaves: Mapping[Event, int], epsilon: float) -> float:
    if any(isinstance(leaf, NonPrivateEvent) for leaf in leaves):
        return 1.0
    if _basic(leaves, 0.0) <= epsilon:
        return 0.0
    bounds = [1.0, rdp.delta(leaves, epsilon)]
    parts, gaussian_mu, rest = split(leaves)
    gaussian_mu, slack, rest = fine_gaussian.absorb(gaussian_mu, rest)
    if not rest and (not slack or fine_gaussian.trusted(epsilon)):
        exact = privacy_loss.delta(parts, max(0.0, epsilon - 2 * slack), gaussian_mu)
        bounds.append(exact * math.exp(slack))
    elif (
        epsilon < _WORTH_MORE
        and (not slack or fine_gaussian.trusted(epsilon))
        and all(pld.supports(leaf) for leaf in rest)
    ):
        least = pld.delta(rest, parts, max(0.0, epsilon - 2 * slack), gaussian_mu)
        bounds.append(least * math.exp(slack))
    return min(bounds)


def parallel(spends: Iterable[Spend]) -> Spend:
    """What releases on disjoint data cost together: the largest, since a unit is in one only.

    Raises ValueError if there are none, or if their δ or threats differ.
    """
    spends = list(spends)
    if len({(spend.delta, spend.threat) for spend in spends}) != 1:
        raise ValueError(f"spends={len(spends)}: need one at least, all of one δ and threat")
    return max(spends, key=lambda spend: spend.epsilon)


@lru_cache(maxsize=4096)
def _epsilon(event: Event, delta: float, view: View) -> Spend:
    failed = failure(event, view)
    if not failed:
        return _spend(event, delta, view)
    # A sum that hides nothing shows what a client's message does.
    bare = replace(view, threat=Threat.LOCAL)
    spends = [_spend(event, delta, bare)]
    if failed < delta:
        spends.append(_spend(event, delta - failed, view))
    least = min(spends, key=lambda spend: spend.epsilon)
    return replace(least, delta=delta, threat=view.threat)


def _spend(event: Event, delta: float, view: View) -> Spend:
    leaves = flatten(event, view)
    bounds = {"none": math.inf}
    if not any(isinstance(leaf, NonPrivateEvent) for leaf in leaves):
        bounds = _bounds(leaves, delta)
    best = min(bounds, key=lambda name: bounds[name])
    return Spend(bounds[best], delta, view.threat, _METHODS[best], bounds)


def _bounds(leaves: Mapping[Event, int], delta: float) -> dict[str, float]:
    """Every finite bound by its method, or {"none": inf}."""
    bounds = {"basic": _basic(leaves, delta)}
    parts, gaussian_mu, rest = split(leaves)
    if delta > 0:
        bounds["rdp"] = rdp.epsilon(leaves, delta)
        bounds["zcdp"] = zcdp.to_epsilon(zcdp.rho(leaves), delta)
    gaussian_mu, slack, rest = fine_gaussian.absorb(gaussian_mu, rest)
    if not rest:
        shuffled = any(isinstance(leaf, ShuffledEvent) for leaf in leaves)
        name = "shuffle" if shuffled else "exact"
        exact = privacy_loss.epsilon(parts, delta * math.exp(-slack), gaussian_mu) + 2 * slack
        if not slack or fine_gaussian.trusted(exact):
            bounds[name] = exact
    elif bounds.get("rdp", math.inf) < _WORTH_MORE and all(pld.supports(leaf) for leaf in rest):
        allowed = delta * math.exp(-slack)
        least = pld.epsilon(rest, parts, allowed, gaussian_mu, bounds["rdp"]) + 2 * slack
        if not slack or fine_gaussian.trusted(least):
            bounds["pld"] = least
    return {name: b for name, b in bounds.items() if math.isfinite(b)} or {"none": math.inf}


def _basic(leaves: Mapping[Event, int], delta: float) -> float:
    """Σ ε_i, with δ shared evenly by the releases that need one."""
    sharing = sum(count for leaf, count in leaves.items() if pure_epsilon(leaf) is None)
    total = 0.0
    for leaf, count in leaves.items():
        pure = pure_epsilon(leaf)
        total += count * (_alone(leaf, delta / sharing) if pure is None else pure)
    return total


def _alone(leaf: Event, delta: float) -> float:
    """ε of one release that is not pure ε-DP."""
    if delta == 0:
        return math.inf
    by_rdp = rdp.epsilon({leaf: 1}, delta)
    if isinstance(leaf, GaussianEvent):
        return min(by_rdp, privacy_loss.epsilon([], delta, 1 / leaf.noise_multiplier))
    return by_rdp
