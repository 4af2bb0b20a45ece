"""An event tree as one adversary sees it: a multiset of elementary releases.

Composition does not depend on the order, so equal releases are counted together. The wrappers
that help only against some adversaries (secure sums, shuffling) are resolved here, and
nowhere else.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from murmur.privacy.accounting import summed_gaussians
from murmur.privacy.accounting.threat import Threat, View
from murmur.privacy.events import (
    ComposedEvent,
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    Hiding,
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
    SummedEvent,
)
from murmur.privacy.neighbours import Adjacency
from murmur.privacy.releases import as_release

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

    ``SummedEvent`` and ``ShuffledEvent`` say what is true of a release for everybody but who sees
    the client itself (``Threat.LOCAL``). A sum relieves releases that say how it hides them
    (``Hiding``); everything else in it counts in full, and so does all that earlier versions
    wrapped in ``SecurelySummedEvent``. What protects less than the unit asked for, or rests on an
    assumption that is not granted, is no protection.

    Raises UnsupportedEventError for an event of a kind that is unknown here.
    """
    leaves: Counter[Event] = Counter()
    _collect(event, 1, view, leaves)
    return leaves


def failure(event: Event, view: View) -> float:
    """How likely it is, at most, that some sum in ``event`` hid nothing; not above 1."""
    if view.threat is Threat.LOCAL:
        return 0.0
    if isinstance(event, RepeatedEvent):
        return min(1.0, event.count * failure(event.event, view))
    if isinstance(event, ComposedEvent):
        return min(1.0, sum(failure(part, view) for part in event.events))
    return event.failure if isinstance(event, SummedEvent) else 0.0


def _collect(
    event: Event,
    count: int,
    view: View,
    leaves: Counter[Event],
    summed: SummedEvent | None = None,
) -> None:
    """Add ``count`` times ``event`` to ``leaves``; ``summed``: the sum that it is part of."""
    if isinstance(event, RepeatedEvent):
        _collect(event.event, count * event.count, view, leaves, summed)
    elif isinstance(event, ComposedEvent):
        for part in event.events:
            _collect(part, count, view, leaves, summed)
    elif isinstance(event, Release):
        _collect_release(event, count, view, leaves, summed)
    elif isinstance(event, SummedEvent):
        hidden_by = None if view.threat is Threat.LOCAL else event
        _collect(event.event, count, view, leaves, hidden_by)
    elif isinstance(event, SecurelySummedEvent):
        _collect(event.event, count, view, leaves)
    elif isinstance(event, ShuffledEvent):
        for leaf, copies in flatten(event.event, view).items():
            hidden = leaf if view.threat is Threat.LOCAL else _shuffled(leaf, event.honest_clients)
            leaves[hidden] += count * copies
    elif view.unit is not None:
        _collect_release(as_release(event), count, view, leaves, summed)
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


def _collect_release(
    release: Release,
    count: int,
    view: View,
    leaves: Counter[Event],
    summed: SummedEvent | None,
) -> None:
    stated = replace(view, adjacency=release.adjacency, unit=None)
    seen = flatten(release.event, stated)  # before all else: it may be unsupported
    if view.unit is not None and not release.unit.covers(view.unit):
        leaves[NonPrivateEvent()] += count
    elif view.grants({assumption.name for assumption in release.assumptions}):
        for leaf, copies in seen.items():
            hidden = leaf if summed is None else _hidden(leaf, release.hiding, summed)
            leaves[hidden] += count * copies
    elif release.otherwise is not None:
        _collect(release.otherwise, count, stated, leaves, summed)
    else:
        leaves[NonPrivateEvent()] += count


def _hidden(leaf: Event, hiding: Hiding, summed: SummedEvent) -> Event:
    """``leaf`` as ``summed`` shows it, where its mechanism says that a sum hides it so."""
    equal = summed.least_weight == summed.greatest_weight
    clients = summed.honest_clients
    if hiding is Hiding.NOISE and isinstance(leaf, GaussianEvent):
        gain = summed_gaussians.gain(clients, summed.weight, summed.least_weight)
        return GaussianEvent(leaf.noise_multiplier * gain)
    if hiding is Hiding.NOISE and isinstance(leaf, DiscreteGaussianEvent):
        return summed_gaussians.summed(leaf, summed)
    if hiding is Hiding.REPORTS and equal and isinstance(leaf, RandomizedBitsEvent):
        return leaf if clients == 1 else SummedEvent(leaf, clients)
    if hiding is Hiding.REPORTS and equal:
        # The sum of one-hot reports is a function of the shuffled reports.
        return _shuffled(leaf, clients)
    return leaf


def _shuffled(leaf: Event, clients: int) -> Event:
    """``leaf`` among the same reports of ``clients`` honest clients, in random order."""
    if clients == 1 or not isinstance(leaf, RandomizedResponseEvent | PureEvent):
        return leaf
    return ShuffledEvent(leaf, clients)


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
    if isinstance(leaf, SummedEvent | ShuffledEvent):
        return pure_epsilon(leaf.event)
    return None
