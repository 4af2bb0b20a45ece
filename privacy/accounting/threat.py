"""The words a guarantee is stated in: whose data, which neighbours, against whom."""

from __future__ import annotations

from enum import StrEnum


class Unit(StrEnum):
    """What one protected unit is: everything a client holds, or one of its records."""

    CLIENT = "client"
    RECORD = "record"


class Adjacency(StrEnum):
    """Which two data sets are neighbours: one unit exchanged, or one unit more or less."""

    REPLACE_ONE = "replace_one"
    ADD_REMOVE = "add_remove"


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
