"""The terms of a guarantee: threat model, unit of privacy, and assumptions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from murmur.privacy.neighbours import Adjacency, Unit


class Threat(StrEnum):
    """What the adversary sees.

    ``LOCAL``: every release of every client, with its sender. ``SHUFFLE``: the releases of a
    cohort without their senders. ``SECURE_AGGREGATION``: the cohort's sum only. ``CENTRAL``:
    what a trusted server publishes. ``OUTSIDER``: what crosses the network and can be seen by
    somebody who is neither client nor server.
    """

    LOCAL = "local"
    SHUFFLE = "shuffle"
    SECURE_AGGREGATION = "secure_aggregation"
    CENTRAL = "central"
    OUTSIDER = "outsider"


@dataclass(frozen=True)
class View:
    """How an accountant is to read events.

    ``threat``: against whom. ``adjacency``: of events that state none. ``unit``: whom the ε is
    for; what protects a weaker unit counts as no protection. None: whatever each release
    protects. ``assumptions``: names of those that are granted; None: all.
    """

    threat: Threat = Threat.LOCAL
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: Unit | None = None
    assumptions: frozenset[str] | None = frozenset()

    def grants(self, names: set[str]) -> bool:
        """Whether all the assumptions ``names`` are granted."""
        return self.assumptions is None or names <= self.assumptions
