"""An event tree as one adversary sees it: a multiset of elementary releases.

Composition does not depend on the order, so equal releases are counted together. The wrappers
that help only against some adversaries (secure sums, shuffling, samples) are resolved here, and
nowhere else; so are releases whose neighbours are not those that are asked for. dp-accounting has
no such adversaries, and one relation for all: its events are all seen by themselves.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from murmur.privacy import events
from murmur.privacy.accounting import gaussian
from murmur.privacy.accounting.bits import epsilon_of_bit
from murmur.privacy.events import (
    Adjacency,
    Event,
    Hiding,
    Neighbours,
    Release,
    SummedEvent,
    Unit,
    releases,
)
from murmur.privacy.neighbours import common

_ELEMENTARY = (
    events.RandomizedResponseEvent,
    events.RandomizedBitsEvent,
    events.GaussianEvent,
    events.DiscreteGaussianEvent,
    events.LaplaceEvent,
    events.PureEvent,
    events.NonPrivateEvent,
)


# Between which neighbours a report could be anybody's.
_ANY_CLIENT = Neighbours(Unit.CLIENT, Adjacency.REPLACE_ONE)


class Threat(StrEnum):
    """Adversary by its view of the messages.

    Attributes:
        LOCAL: every release of every client, with its sender.
        SHUFFLE: the releases of a cohort without their senders.
        SECURE_AGGREGATION: the cohort's sum only.
        CENTRAL: what a trusted server publishes.
        OUTSIDER: what crosses the network and can be seen by somebody who is neither client nor
            server.
    """

    LOCAL = "local"
    SHUFFLE = "shuffle"
    SECURE_AGGREGATION = "secure_aggregation"
    CENTRAL = "central"
    OUTSIDER = "outsider"


@dataclass(frozen=True)
class View:
    """How an accountant is to read events.

    Attributes:
        threat: against whom.
        unit: whom the ε is for. None: those whom all releases protect.
        adjacency: with ``unit``, between which neighbours; None: those that all releases cover
            (``neighbours.common``). Without it, of events that state none.
        assumptions: names of those that are granted; None: all.
    """

    threat: Threat = Threat.LOCAL
    adjacency: Adjacency | None = None
    unit: Unit | None = None
    assumptions: frozenset[str] | None = frozenset()


class UnsupportedEventError(ValueError):
    """An event that this version cannot account for: neither a finite nor an infinite ε.

    Another version wrote it, or its kind is new. Whoever checks a budget refuses then.
    """


def flatten(event: Event, view: View) -> Counter[Event]:
    """The elementary releases in ``event`` with their counts, as ``view`` asks for them.

    ``SummedEvent`` and ``ShuffledEvent`` say what is true of a release for everybody but who sees
    the client itself (``Threat.LOCAL``). A sum relieves releases that say how it hides them
    (``Hiding``); everything else in it counts in full, and so does all that earlier versions
    wrapped in ``SecurelySummedEvent``. What is for other neighbours than those asked for counts by
    ``neighbours.STEPS``: as it is, as two steps, or as no protection; so does what rests on an
    assumption that is not granted.

    Raises UnsupportedEventError for an event of a kind that is unknown here.
    """
    leaves: Counter[Event] = Counter()
    for leaf, count in _leaves(event, view, wanted(event, view)):
        leaves[leaf] += count
    return leaves


def wanted(event: Event, view: View) -> Neighbours:
    """The neighbours for which ``view`` asks for the ε of ``event``."""
    if view.unit is not None and view.adjacency is not None:
        return Neighbours(view.unit, view.adjacency)
    return common((release.neighbours for release in releases(event)), view.unit)


def failure(event: Event, view: View) -> float:
    """How likely it is, at most, that some sum in ``event`` hid nothing; not above 1.

    The union bound over all sums of the event: ``SummedEvent.failure``, once for each. 0 against
    ``Threat.LOCAL``, which counts on no sum.
    """
    if view.threat is Threat.LOCAL:
        return 0.0
    if isinstance(event, events.RepeatedEvent):
        return min(1.0, event.count * failure(event.event, view))
    if isinstance(event, events.ComposedEvent):
        return min(1.0, sum(failure(part, view) for part in event.events))
    if isinstance(event, SummedEvent):
        return event.failure
    return 0.0


def pure_epsilon(leaf: Event) -> float | None:
    """ε of an elementary release with δ = 0; None where there is none, as for Gaussian noise.

    Of a sum or a shuffle that of the release inside it, which it never makes worse.
    """
    if isinstance(leaf, events.RandomizedResponseEvent | events.PureEvent):
        return leaf.epsilon
    if isinstance(leaf, events.LaplaceEvent):
        return 1 / leaf.noise_multiplier
    if isinstance(leaf, events.RandomizedBitsEvent):
        return leaf.sensitivity_bits * epsilon_of_bit(leaf.gamma)
    if isinstance(leaf, SummedEvent | events.ShuffledEvent):
        return pure_epsilon(leaf.event)
    return None


def _leaves(
    event: Event, view: View, asked: Neighbours, summed: SummedEvent | None = None
) -> Iterator[tuple[Event, int]]:
    """Elementary releases, not yet counted together.

    ``asked``: between which neighbours. ``summed``: the sum that ``event`` is in.
    """
    if isinstance(event, events.RepeatedEvent):
        for leaf, count in _leaves(event.event, view, asked, summed):
            yield leaf, count * event.count
    elif isinstance(event, events.ComposedEvent):
        for part in event.events:
            yield from _leaves(part, view, asked, summed)
    elif isinstance(event, Release):
        yield from _leaves_of_release(event, view, asked, summed)
    elif isinstance(event, SummedEvent):
        if view.threat is Threat.LOCAL:
            yield from _leaves(event.event, view, asked)
        else:
            yield from _leaves(event.event, view, asked, event)
    elif isinstance(event, events.SecurelySummedEvent):
        yield from _leaves(event.event, view, asked)
    elif isinstance(event, events.ShuffledEvent):
        for leaf, count in _leaves(event.event, view, asked):
            if view.threat is not Threat.LOCAL:
                leaf = _shuffled(leaf, event.honest_clients)
            yield leaf, count
    elif view.unit is not None:
        yield from _leaves_of_release(events.as_release(event), view, asked, summed)
    elif isinstance(event, events.PoissonSampledEvent):
        inner = flatten(event.event, view)  # of events that state nothing
        for leaf, count in inner.items():
            # Several releases on one sample are not amplified.
            if inner.total() == 1:
                leaf = _sampled(leaf, event.rate, view.adjacency)
            yield leaf, count
    elif isinstance(event, _ELEMENTARY):
        yield event, 1
    else:
        kind = event.to_dict().get("kind")
        raise UnsupportedEventError(f"kind={kind}: this version cannot account for such an event")


def _leaves_of_release(
    release: Release, view: View, asked: Neighbours, summed: SummedEvent | None
) -> Iterator[tuple[Event, int]]:
    """The elementary releases of one ``Release``, under what it states and rests on.

    Its adjacency replaces the view's. Where it says nothing of the neighbours asked for, or an
    assumption is not granted and nothing is proven without it, a single release without protection.
    """
    steps = release.neighbours.steps(asked)
    own = replace(view, adjacency=release.adjacency, unit=None)
    if steps == 2:  # of a record in a sample is an exchange in it
        own = replace(own, adjacency=Adjacency.REPLACE_ONE)
    # Before all else: it may be unsupported.
    seen = list(_leaves(release.event, own, release.neighbours))
    names = {assumption.name for assumption in release.assumptions}
    if steps is None:
        yield events.NonPrivateEvent(), 1
    elif view.assumptions is None or names <= view.assumptions:
        for leaf, count in seen:
            leaf = _over(steps, leaf)
            if summed is not None:
                leaf = _hidden(leaf, release, summed)
            yield leaf, count
    elif isinstance(release.otherwise, Release):
        yield from _leaves_of_release(release.otherwise, view, asked, summed)
    elif release.otherwise is not None:
        for leaf, count in _leaves(release.otherwise, own, release.neighbours):
            yield _over(steps, leaf), count
    else:
        yield events.NonPrivateEvent(), 1


def _over(steps: int, leaf: Event) -> Event:
    """``leaf`` between data sets that are so many of its steps apart, one or two.

    Distances of what is noised add up, in bits to at most all of them. Everything else is 2ε-DP.
    """
    if steps == 1:
        return leaf
    if isinstance(leaf, events.GaussianEvent):
        return events.GaussianEvent(leaf.noise_multiplier / 2)
    if isinstance(leaf, events.DiscreteGaussianEvent):
        return replace(leaf, sensitivity=2 * leaf.sensitivity)
    if isinstance(leaf, events.LaplaceEvent):
        moved = leaf.sensitivity_steps
        if moved is not None:
            moved *= 2
        return events.LaplaceEvent(leaf.noise_multiplier / 2, moved)
    if isinstance(leaf, events.RandomizedBitsEvent):
        return replace(leaf, sensitivity_bits=min(leaf.bits, 2 * leaf.sensitivity_bits))
    pure = pure_epsilon(leaf)
    if pure is None:
        return events.NonPrivateEvent()
    return events.PureEvent(2 * pure)


def _hidden(leaf: Event, release: Release, summed: SummedEvent) -> Event:
    """``leaf`` of ``release`` as ``summed`` shows it, where the release says that it hides it so.

    A report hides others' where it could be that of any client, whatever its data.
    """
    hiding = release.hiding
    equal = summed.least_weight == summed.greatest_weight
    clients = summed.honest_clients
    if isinstance(leaf, events.PureEvent) and release.neighbours.steps(_ANY_CLIENT) != 1:
        return leaf
    if hiding is Hiding.NOISE and isinstance(leaf, events.GaussianEvent):
        gain = gaussian.gain(clients, summed.weight, summed.least_weight)
        return events.GaussianEvent(leaf.noise_multiplier * gain)
    if hiding is Hiding.NOISE and isinstance(leaf, events.DiscreteGaussianEvent):
        return gaussian.in_sum(leaf, summed)
    if hiding is Hiding.REPORTS and equal and isinstance(leaf, events.RandomizedBitsEvent):
        if clients > 1:
            return SummedEvent(leaf, clients)
    elif hiding is Hiding.REPORTS and equal:
        # The sum of one-hot reports is a function of the shuffled reports.
        return _shuffled(leaf, clients)
    return leaf


def _shuffled(leaf: Event, clients: int) -> Event:
    """``leaf`` among the same reports of ``clients`` honest clients, in random order."""
    if clients == 1 or not isinstance(leaf, events.RandomizedResponseEvent | events.PureEvent):
        return leaf
    return events.ShuffledEvent(leaf, clients)


def _sampled(leaf: Event, rate: float, adjacency: Adjacency | None) -> Event:
    """``leaf`` on a Poisson sample, for neighbours that differ by one record more or less.

    A null record contributes as little as none, so it costs the same. Nothing is gained here
    where any record may take another's place: by the same coins the other is in the lot if the one
    is, and a mixture over lots costs no more than the worst one.
    """
    if rate == 1 or adjacency is Adjacency.REPLACE_ONE:
        return leaf
    if isinstance(leaf, events.GaussianEvent | events.DiscreteGaussianEvent):
        return events.PoissonSampledEvent(rate, leaf)
    pure = pure_epsilon(leaf)
    if pure is None:
        return leaf
    # ln(1 + rate·(e^ε − 1)), which overflows for large ε.
    return events.PureEvent(pure + math.log(rate + (1 - rate) * math.exp(-pure)))
