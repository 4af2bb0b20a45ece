"""An event tree as one adversary sees it: a multiset of elementary releases.

Composition does not depend on the order, so equal releases are counted together. The wrappers
that help only against some adversaries (secure sums, shuffling) are resolved here, and
nowhere else.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from privacy.accounting import summed_gaussians
from privacy.accounting.threat import Threat, View
from privacy.events import (
    ComposedEvent,
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    PoissonSampledEvent,
    PureEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    Release,
    RepeatedEvent,
    SecurelySummedEvent,
    ShuffledEvent,
)
from privacy.neighbours import Adjacency
from privacy.releases import as_release

_ELEMENTARY = (
    RandomizedResponseEvent,
    RandomizedBitsEvent,
    GaussianEvent,
    DiscreteGaussianEvent,
    LaplaceEvent,
    PureEvent,
    NonPrivateEvent,
)


class UnsupportedEventError(ValueError):
    """An event that this version cannot account for: neither a finite nor an infinite ε."""


def supports(event: Event) -> bool:
    """Whether ``event`` can be accounted for; one that cannot must not be released."""
    try:
        flatten(event, View())
    except UnsupportedEventError:
        return False
    return True


def flatten(event: Event, view: View) -> Counter[Event]:
    """The elementary releases in ``event`` with their counts, as ``view`` asks for them.

    ``SecurelySummedEvent`` and ``ShuffledEvent`` say what is true of a release for everybody
    but who sees the client itself (``Threat.LOCAL``). Where a wrapper gives no proven relief
    for what it wraps, it is dropped, which is the safe side. What protects less than the unit
    asked for, or rests on an assumption that is not granted, is no protection.

    Raises UnsupportedEventError for an event of a kind that is unknown here.
    """
    leaves: Counter[Event] = Counter()
    _collect(event, 1, view, leaves)
    return leaves


def _collect(event: Event, count: int, view: View, leaves: Counter[Event]) -> None:
    if isinstance(event, RepeatedEvent):
        _collect(event.event, count * event.count, view, leaves)
    elif isinstance(event, ComposedEvent):
        for part in event.events:
            _collect(part, count, view, leaves)
    elif isinstance(event, Release):
        _collect_release(event, count, view, leaves)
    elif isinstance(event, SecurelySummedEvent | ShuffledEvent):
        for leaf, copies in flatten(event.event, view).items():
            hidden = leaf if view.threat is Threat.LOCAL else _hidden(leaf, event)
            leaves[hidden] += count * copies
    elif view.unit is not None:
        _collect_release(as_release(event), count, view, leaves)
    elif isinstance(event, PoissonSampledEvent):
        inner = flatten(event.event, view)
        single = len(inner) == 1 and inner.total() == 1
        for leaf, copies in inner.items():
            sampled = _sampled(leaf, event.rate, view.adjacency) if single else leaf
            leaves[sampled] += count * copies
    elif isinstance(event, _ELEMENTARY):
        leaves[event] += count
    else:
        kind = event.to_dict().get("kind")
        raise UnsupportedEventError(f"kind={kind}: this version cannot account for such an event")


def _collect_release(release: Release, count: int, view: View, leaves: Counter[Event]) -> None:
    stated = replace(view, adjacency=release.adjacency, unit=None)
    seen = flatten(release.event, stated)  # before all else: it may be unsupported
    if view.unit is not None and not release.unit.covers(view.unit):
        leaves[NonPrivateEvent()] += count
    elif view.grants({assumption.name for assumption in release.assumptions}):
        for leaf, copies in seen.items():
            leaves[leaf] += count * copies
    elif release.otherwise is not None:
        _collect(release.otherwise, count, stated, leaves)
    else:
        leaves[NonPrivateEvent()] += count


def _hidden(leaf: Event, wrapper: SecurelySummedEvent | ShuffledEvent) -> Event:
    """``leaf`` in a sum or shuffle with those of ``wrapper.honest_clients`` other clients."""
    clients = wrapper.honest_clients
    if clients == 1:
        return leaf
    if isinstance(leaf, RandomizedResponseEvent | PureEvent):
        # For one-hot reports the sum and the shuffled reports are the same thing; for other
        # pure releases a sum is a function of the shuffled reports.
        return ShuffledEvent(leaf, clients)
    if isinstance(wrapper, SecurelySummedEvent):
        if isinstance(leaf, RandomizedBitsEvent):
            return SecurelySummedEvent(leaf, clients)
        if isinstance(leaf, GaussianEvent):
            # Independent Gaussians add up: σ√n beside the same sensitivity.
            return GaussianEvent(leaf.noise_multiplier * math.sqrt(clients))
        if isinstance(leaf, DiscreteGaussianEvent):
            return summed_gaussians.summed(leaf, clients)
    return leaf


def _sampled(leaf: Event, rate: float, adjacency: Adjacency) -> Event:
    """``leaf`` on a Poisson sample, for neighbours that differ by one record more or less.

    A null record contributes as little as none, so it costs the same. Nothing is gained here
    where any record may take another's place.
    """
    if rate == 1 or adjacency is Adjacency.REPLACE_ONE:
        return leaf
    if isinstance(leaf, GaussianEvent | DiscreteGaussianEvent):
        return PoissonSampledEvent(rate, leaf)
    pure = pure_epsilon(leaf)
    if pure is None:
        return leaf
    # ln(1 + rate·(e^ε − 1)), which overflows for large ε.
    return PureEvent(pure + math.log(rate + (1 - rate) * math.exp(-pure)))


def pure_epsilon(leaf: Event) -> float | None:
    """ε of an elementary release with δ = 0; None where there is none."""
    if isinstance(leaf, RandomizedResponseEvent | PureEvent):
        return leaf.epsilon
    if isinstance(leaf, LaplaceEvent):
        return 1 / leaf.noise_multiplier
    if isinstance(leaf, RandomizedBitsEvent):
        return leaf.sensitivity_bits * (math.log1p(2 * leaf.gamma) - math.log1p(-2 * leaf.gamma))
    if isinstance(leaf, SecurelySummedEvent | ShuffledEvent):
        return pure_epsilon(leaf.event)
    return None
