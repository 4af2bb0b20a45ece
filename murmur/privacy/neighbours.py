"""Whose data a guarantee is about, and which two data sets are neighbours."""

from __future__ import annotations

from enum import StrEnum


class Unit(StrEnum):
    """What one protected unit is: everything a client holds, or one of its records."""

    CLIENT = "client"
    RECORD = "record"

    def covers(self, other: Unit) -> bool:
        """Whether what protects this unit protects ``other``: a client's records are in it."""
        return self is Unit.CLIENT or other is Unit.RECORD


class Adjacency(StrEnum):
    """Which two data sets are neighbours.

    ``REPLACE_ONE``: one unit exchanged for any other. ``ADD_REMOVE``: one unit more or less.
    ``REPLACE_SPECIAL``: one unit exchanged for a null unit, which contributes nothing, so that
    the number of units may be public (dp-accounting's name for it).
    """

    REPLACE_ONE = "replace_one"
    ADD_REMOVE = "add_remove"
    REPLACE_SPECIAL = "replace_special"

    def covers(self, other: Adjacency) -> bool:
        """Whether ε between these neighbours is at least ε between ``other``: any, or null."""
        return self is other or (
            self is Adjacency.REPLACE_ONE and other is Adjacency.REPLACE_SPECIAL
        )
