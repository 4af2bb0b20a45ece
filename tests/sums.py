"""Releases in secure sums, as their mechanisms state them."""

from murmur.privacy.events import Adjacency, Event, Hiding, Release, SummedEvent, Unit


def noised(event: Event, honest_clients: int, **weights: int) -> SummedEvent:
    """``event`` with noise in every cell of a sum."""
    release = Release(event, Unit.CLIENT, Adjacency.REPLACE_ONE, hiding=Hiding.NOISE)
    return SummedEvent(release, honest_clients, **weights)


def reported(event: Event, honest_clients: int, **weights: int) -> SummedEvent:
    """``event`` as reports in cells that all clients of a sum share."""
    release = Release(event, Unit.CLIENT, Adjacency.REPLACE_ONE, hiding=Hiding.REPORTS)
    return SummedEvent(release, honest_clients, **weights)
