"""From events to ε at δ: every proven bound that applies, and the smallest of them.

``epsilon`` is what the rest of Murmur calls: ledgers' policies, statements, budgets and
calibrations. It reads an event as one adversary sees it (``flatten``), bounds the elementary
releases together in several ways, each proven by itself, and gives the least. Where nothing is
proven ε is infinite: the safe side.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from murmur.privacy import events
from murmur.privacy.accounting import pld, privacy_loss, rdp
from murmur.privacy.accounting.flatten import Threat, View, failure, flatten, pure_epsilon
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
class PrivacyCost:
    """Cost of events at one δ against one adversary.

    Attributes:
        epsilon: the smallest of ``bounds``. Infinite for a release without protection.
        method: in words, where ``epsilon`` comes from.
        bounds: ε by method (basic, rdp, zcdp, exact, pld, shuffle), each of which is proven; those
            that are infinite are left out, and "none" stands alone where all are. Where some sum
            may hide nothing, they are those at the δ that this leaves, or of releases that nobody
            sums.
    """

    epsilon: float
    method: str
    bounds: dict[str, float]


def epsilon(
    event: Event,
    delta: float,
    threat: Threat = Threat.LOCAL,
    adjacency: Adjacency | None = None,
    *,
    unit: Unit | None = None,
    assumptions: Iterable[str] | None = (),
) -> PrivacyCost:
    """Cost of ``event`` to a unit at ``delta``, as ``threat`` sees it. Results are cached.

    Args:
        event: a tree of what was released; its order does not matter.
        delta: in [0, 1). At 0 only pure ε-DP counts.
        threat: the adversary. Sums and shuffles help against all but LOCAL.
        adjacency: with ``unit``, between which neighbours the ε is for; None: those that all
            releases cover (``neighbours.common``). Without ``unit``, of events that state none: it
            matters for Poisson sampling only, from which nothing is gained here under replace-one.
        unit: whom the ε is for. None: those whom all releases protect.
        assumptions: names of those that are granted. None: all; without any, ε is proven.

    Raises:
        ValueError: ``delta`` is out of range.
        UnsupportedEventError: this version cannot account for the event.
    """
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta}: must lie in [0, 1)")
    granted = None if assumptions is None else frozenset(assumptions)
    if adjacency is not None:
        adjacency = Adjacency(adjacency)
    view = View(Threat(threat), adjacency, unit, granted)
    spend = _epsilon(event, float(delta), view)
    return replace(spend, bounds=dict(spend.bounds))


@lru_cache(maxsize=4096)
def _epsilon(event: Event, delta: float, view: View) -> PrivacyCost:
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
    return min(spends, key=lambda spend: spend.epsilon)


def _spend(event: Event, delta: float, view: View) -> PrivacyCost:
    """The least of all bounds, sums being taken to hide what they say."""
    leaves = flatten(event, view)
    bounds = {"none": math.inf}
    # Where anything leaves without protection, nothing else needs to be counted.
    if not any(isinstance(leaf, events.NonPrivateEvent) for leaf in leaves):
        bounds = _bounds(leaves, delta)
    best = min(bounds, key=lambda name: bounds[name])
    return PrivacyCost(bounds[best], _METHODS[best], bounds)


def _bounds(leaves: Mapping[Event, int], delta: float) -> dict[str, float]:
    """Every finite bound by its method, or {"none": inf}."""
    bounds = {"basic": _basic(leaves, delta)}
    if delta > 0:
        bounds["rdp"] = rdp.epsilon(leaves, delta)
        bounds["zcdp"] = rdp.epsilon_of_rho(rdp.rho(leaves), delta)
    by_losses = pld.epsilon(leaves, delta, bounds.get("rdp", math.inf))
    if by_losses is not None:
        bound, is_exact = by_losses
        name = "pld"
        if is_exact:
            name = "exact"
            if any(isinstance(leaf, events.ShuffledEvent) for leaf in leaves):
                name = "shuffle"
        bounds[name] = bound
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
