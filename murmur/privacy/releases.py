"""What events state about themselves: unit, neighbours and assumptions, release by release."""

from __future__ import annotations

from collections.abc import Iterator

from murmur.privacy.events import (
    Assumption,
    ComposedEvent,
    DiscreteGaussianEvent,
    Event,
    NonPrivateEvent,
    PoissonSampledEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    Release,
    RepeatedEvent,
    SecurelySummedEvent,
    ShuffledEvent,
    SummedEvent,
)
from murmur.privacy.neighbours import Adjacency, Unit

_MANY_BITS = 1000

UNRECORDED = Assumption(
    "unrecorded", "an earlier version charged this without saying what its sensitivity rests on"
)


def releases(event: Event) -> Iterator[Release]:
    """The releases in ``event``; parts that state nothing as ``as_release`` reads them."""
    if isinstance(event, Release):
        yield event
    elif isinstance(event, ComposedEvent):
        for part in event.events:
            yield from releases(part)
    elif isinstance(event, RepeatedEvent | SummedEvent | SecurelySummedEvent | ShuffledEvent):
        yield from releases(event.event)
    else:
        yield as_release(event)


def assumptions_of(event: Event) -> list[Assumption]:
    """Everything that some release in ``event`` rests on, each once."""
    found = (assumption for release in releases(event) for assumption in release.assumptions)
    return list(dict.fromkeys(found))


def as_release(event: Event) -> Release:
    """``event``, which states no unit, as what ledgers of versions that recorded none meant.

    Randomised labels and bits protected a client, since any report may come from any data. What
    had another noise protected a record at least: on a Poisson sample between null records,
    else between any two. Of Gaussian noise on a vector it is not known what its sensitivity
    rested on, which is an assumption of its own.
    """
    if isinstance(event, RandomizedResponseEvent | RandomizedBitsEvent | NonPrivateEvent):
        return Release(event, Unit.CLIENT, Adjacency.REPLACE_ONE)
    if isinstance(event, PoissonSampledEvent):
        return Release(event, Unit.RECORD, Adjacency.REPLACE_SPECIAL)
    unsure = isinstance(event, DiscreteGaussianEvent)
    return Release(event, Unit.RECORD, Adjacency.REPLACE_ONE, (UNRECORDED,) if unsure else ())


def is_gaussian(event: Event, exactly: bool = False) -> bool:
    """Whether the noise of ``event`` is Gaussian, or nearly so.

    Nearly, unless ``exactly``: on samples; and on so many bits that the sum of their losses is
    close to a normal one (Dong, Roth and Su 2022, theorem 5).
    """
    if isinstance(event, ComposedEvent):
        return all(is_gaussian(each, exactly) for each in event.events)
    if isinstance(event, PoissonSampledEvent) and exactly and event.rate < 1:
        return False
    if isinstance(event, Release | RepeatedEvent | SummedEvent | PoissonSampledEvent):
        return is_gaussian(event.event, exactly)
    if isinstance(event, RandomizedBitsEvent):
        return not exactly and event.sensitivity_bits >= _MANY_BITS
    return isinstance(event, DiscreteGaussianEvent)
