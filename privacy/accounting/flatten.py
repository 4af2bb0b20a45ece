"""An event tree as one adversary sees it: a multiset of elementary releases.

Composition does not depend on the order, so equal releases are counted together. The wrappers
that help only against some adversaries (secure sums, shuffling) are resolved here, and
nowhere else.
"""

from __future__ import annotations

import math
from collections import Counter

from privacy.accounting import summed_gaussians
from privacy.accounting.threat import Adjacency, Threat
from privacy.events import (
    ComposedEvent,
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PoissonSampledEvent,
    PureEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    RepeatedEvent,
    SecurelySummedEvent,
    ShuffledEvent,
)


def flatten(event: Event, threat: Threat, adjacency: Adjacency) -> Counter[Event]:
    """The elementary releases in ``event`` with their counts, as ``threat`` sees them.

    ``SecurelySummedEvent`` and ``ShuffledEvent`` say what is true of a release for everybody
    but who sees the client itself (``Threat.LOCAL``). Where a wrapper gives no proven relief
    for what it wraps, it is dropped, which is the safe side.
    """
    leaves: Counter[Event] = Counter()
    _collect(event, 1, threat, adjacency, leaves)
    return leaves


def _collect(
    event: Event, count: int, threat: Threat, adjacency: Adjacency, leaves: Counter[Event]
) -> None:
    if isinstance(event, RepeatedEvent):
        _collect(event.event, count * event.count, threat, adjacency, leaves)
    elif isinstance(event, ComposedEvent):
        for part in event.events:
            _collect(part, count, threat, adjacency, leaves)
    elif isinstance(event, SecurelySummedEvent | ShuffledEvent):
        inner = flatten(event.event, threat, adjacency)
        for leaf, copies in inner.items():
            hidden = leaf if threat is Threat.LOCAL else _hidden(leaf, event)
            leaves[hidden] += count * copies
    elif isinstance(event, PoissonSampledEvent):
        inner = flatten(event.event, threat, adjacency)
        single = len(inner) == 1 and inner.total() == 1
        for leaf, copies in inner.items():
            sampled = _sampled(leaf, event.rate, adjacency) if single else leaf
            leaves[sampled] += count * copies
    else:
        leaves[event] += count


def _hidden(leaf: Event, wrapper: SecurelySummedEvent | ShuffledEvent) -> Event:
    """``leaf`` hidden among ``wrapper.honest_clients`` like it."""
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
    """``leaf`` on a Poisson sample, for neighbours that differ by one record more or less."""
    if rate == 1 or adjacency is not Adjacency.ADD_REMOVE:
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
