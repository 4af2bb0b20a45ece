"""From events to ε at δ: every proven bound that applies, and the smallest of them.

``epsilon`` and ``delta`` are what the rest of Murmur calls: ledgers' policies, statements, budgets
and calibrations. Both read an event as one adversary sees it (``flatten``), bound the elementary
releases together in several ways, each proven by itself, and give the least. Where nothing is
proven ε is infinite and δ is 1: the safe side.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from murmur.privacy import events
from murmur.privacy.accounting import privacy_loss, rdp
from murmur.privacy.accounting.flatten import Threat, View, failure, flatten, pure_epsilon
from murmur.privacy.accounting.pld import Losses
from murmur.privacy.events import Adjacency, Event, Unit

_METHODS = {
    "basic": "basic composition",
    "exact": "exact privacy-loss distribution",
    "pld": "privacy-loss distribution, rounded up",
    "shuffle": "privacy-loss distribution of the clone bound for shuffling",
    "rdp": "Rényi differential privacy",
    "zcdp": "concentrated differential privacy",
    "none": "no protection",
}


@dataclass(frozen=True)
class Spend:
    """What events cost: ``epsilon`` at ``delta`` against ``threat``.

    Attributes:
        epsilon: the smallest of ``bounds``. Infinite for a release without protection.
        delta: the δ that was asked for, failures of sums included.
        threat: the adversary.
        method: in words, where ``epsilon`` comes from.
        bounds: ε by method (basic, rdp, zcdp, exact, pld, shuffle), each of which is proven; those
            that are infinite are left out, and "none" stands alone where all are. Where some sum
            may hide nothing, they are those at the δ that this leaves, or of releases that nobody
            sums.
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
    """What ``event`` costs a unit at ``delta``, as ``threat`` sees it. Results are cached.

    Args:
        event: a tree of what was released; its order does not matter.
        delta: in [0, 1). At 0 only pure ε-DP counts.
        threat: the adversary. Sums and shuffles help against all but LOCAL.
        adjacency: of events that state none; it matters for Poisson sampling only, from which
            nothing is gained here under replace-one.
        unit: whom the ε is for. None: what each release protects.
        assumptions: names of those that are granted. None: all; without any, ε is proven.

    Raises:
        ValueError: ``delta`` is out of range.
        UnsupportedEventError: this version cannot account for the event.
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

    Each release is read for the unit and neighbours that it states, and assumptions are not
    granted.

    Args:
        event: a tree of what was released.
        epsilon: at least 0.
        threat: the adversary.
        adjacency: of events that state none.

    Raises:
        ValueError: ``epsilon`` is below 0.
        UnsupportedEventError: this version cannot account for the event.
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon={epsilon}: must be at least 0")
    view = View(Threat(threat), Adjacency(adjacency))
    leaves = flatten(event, view)
    if _is_bare(leaves):
        return 1.0
    failed = failure(event, view)
    if _basic(leaves, 0.0) <= epsilon:
        return failed
    proven = rdp.delta(leaves, epsilon)
    losses = Losses.of(leaves, epsilon)
    if losses is not None:
        proven = min(proven, losses.delta(epsilon))
    return min(1.0, proven + failed)


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
    """``epsilon`` for a view, with what sums that hide nothing cost.

    With probability ``failed`` at most some sum shows a client's message. That is added to δ; where
    it would take all of it, or costs more than it gains, releases count as if nobody summed.
    """
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
    """The least of all bounds, sums being taken to hide what they say."""
    leaves = flatten(event, view)
    bounds = {"none": math.inf}
    if not _is_bare(leaves):
        bounds = _bounds(leaves, delta)
    best = min(bounds, key=lambda name: bounds[name])
    return Spend(bounds[best], delta, view.threat, _METHODS[best], bounds)


def _is_bare(leaves: Mapping[Event, int]) -> bool:
    """Whether anything leaves without protection, so that nothing else needs to be counted."""
    return any(isinstance(leaf, events.NonPrivateEvent) for leaf in leaves)


def _bounds(leaves: Mapping[Event, int], delta: float) -> dict[str, float]:
    """Every finite bound by its method, or {"none": inf}."""
    bounds = {"basic": _basic(leaves, delta)}
    if delta > 0:
        bounds["rdp"] = rdp.epsilon(leaves, delta)
        bounds["zcdp"] = rdp.epsilon_of_rho(rdp.rho(leaves), delta)
    losses = Losses.of(leaves, bounds.get("rdp", math.inf))
    if losses is not None:
        name = "pld"
        if losses.is_exact:
            name = "exact"
            if any(isinstance(leaf, events.ShuffledEvent) for leaf in leaves):
                name = "shuffle"
        bounds[name] = losses.epsilon(delta)
    return {name: b for name, b in bounds.items() if math.isfinite(b)} or {"none": math.inf}


def _basic(leaves: Mapping[Event, int], delta: float) -> float:
    """Σ ε_i, with δ shared evenly by the releases that need one."""
    sharing = sum(count for leaf, count in leaves.items() if pure_epsilon(leaf) is None)
    total = 0.0
    for leaf, count in leaves.items():
        one = pure_epsilon(leaf)
        if one is None:
            one = _alone(leaf, delta / sharing)
        total += count * one
    return total


def _alone(leaf: Event, delta: float) -> float:
    """ε of one release that is not pure ε-DP."""
    if delta == 0:
        return math.inf
    by_rdp = rdp.epsilon({leaf: 1}, delta)
    if isinstance(leaf, events.GaussianEvent):
        return min(by_rdp, privacy_loss.epsilon([], delta, 1 / leaf.noise_multiplier))
    return by_rdp
