"""Between which data sets a guarantee holds, and which guarantee follows from which.

A data set is a set of clients, each of which holds a set of records. Neighbours differ in one unit
(``Unit``), by an exchange, or in that the unit is there at all (``Adjacency``). (ε, δ) means
P[M(D) ∈ S] ≤ e^ε P[M(D') ∈ S] + δ for all neighbours D, D', in both orders, and all S.

**Steps.** Where D and D' are neighbours by ``wanted``, and D, D° and D°, D' by ``stated``, what is
(ε, δ) as stated is (2ε, (1 + e^ε)δ) as wanted, by inserting one inequality into the other; noise of
sensitivity Δ is that of 2Δ, by the triangle inequality (any μ-GDP release is 2μ-GDP: Dong, Roth and
Su 2022, theorem 2.14). That is 2 in the table; 1 is where D and D' are neighbours as stated
already; nothing is where no chain of steps leads from D to D', or one of as many as a client has
records. Why each holds, by its letter there:

a. Nothing is exchanged: the relations are the same.
b. A null unit is a unit: it is counted, and contributes what one may that contributes nothing. So a
   unit that is nulled is one that is exchanged.
c. D° has the null unit in the place of the two that are exchanged.
d. D° lacks the unit that is exchanged or nulled: it is taken out, and another is put in.
e. What a client holds with some records exchanged, or nulled, is all that a client may hold, so
   that a client is exchanged. By (c) or (d) that is two steps where it is not exchanged at once;
   by (d) also with a record more or less.
f. In part: some of a client's records are null; here all of them, or one.
g. By (f) to a null record, and back to the other one.

Nothing else follows. Where units are exchanged or nulled, their number is public, and M may publish
it: one more or less is told apart for certain. Where clients are, each one's number of records is
public as well (weights, sampling rates), and one record more or less is told apart. A client may
hold any number of records: none for a record covers it.

Nothing here loads another module of Murmur: whoever reads a ledger needs this.
"""

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class Unit(StrEnum):
    """Protected unit: everything a client holds, or one of its records."""

    CLIENT = "client"
    RECORD = "record"


class Adjacency(StrEnum):
    """Which two data sets are neighbours.

    ``REPLACE_ONE``: one unit exchanged for any other. ``ADD_REMOVE``: one unit more or less.
    ``REPLACE_SPECIAL``: one unit exchanged for a null unit, which contributes nothing, so that
    the number of units may be public (dp-accounting's name for it).
    """

    REPLACE_ONE = "replace_one"
    ADD_REMOVE = "add_remove"
    REPLACE_SPECIAL = "replace_special"


class Neighbours(NamedTuple):
    """Difference of two neighbouring data sets, as a release, a statement or a policy has it.

    ``in_part``: of a client that is nulled, also any part: some of its records null, the others as
    they are. Only releases can say so.
    """

    unit: Unit
    adjacency: Adjacency
    in_part: bool = False

    def __str__(self) -> str:
        return f"unit={self.unit}, adjacency={self.adjacency}"

    def steps(self, wanted: "Neighbours") -> int | None:
        """How many of these steps lead between any two that are neighbours by ``wanted``.

        1: what protects these protects those. 2: at the price of two steps. None: it does not.
        """
        return STEPS[self].get(wanted)


_CLIENT = Neighbours(Unit.CLIENT, Adjacency.REPLACE_ONE)
_CLIENT_OR_NONE = Neighbours(Unit.CLIENT, Adjacency.ADD_REMOVE)
_CLIENT_OR_NULL = Neighbours(Unit.CLIENT, Adjacency.REPLACE_SPECIAL)
_IN_PART = Neighbours(Unit.CLIENT, Adjacency.REPLACE_SPECIAL, in_part=True)
_RECORD = Neighbours(Unit.RECORD, Adjacency.REPLACE_ONE)
_RECORD_OR_NONE = Neighbours(Unit.RECORD, Adjacency.ADD_REMOVE)
_RECORD_OR_NULL = Neighbours(Unit.RECORD, Adjacency.REPLACE_SPECIAL)

STEPS: dict[Neighbours, dict[Neighbours, int]] = {
    _CLIENT: {
        _CLIENT: 1,  # a
        _CLIENT_OR_NULL: 1,  # b
        _IN_PART: 1,  # e
        _RECORD: 1,  # e
        _RECORD_OR_NULL: 1,  # e
    },
    _CLIENT_OR_NULL: {
        _CLIENT: 2,  # c
        _CLIENT_OR_NULL: 1,  # a
        _IN_PART: 2,  # e
        _RECORD: 2,  # e
        _RECORD_OR_NULL: 2,  # e
    },
    _IN_PART: {
        _CLIENT: 2,  # c
        _CLIENT_OR_NULL: 1,  # f
        _IN_PART: 1,  # a
        _RECORD: 2,  # g
        _RECORD_OR_NULL: 1,  # f
    },
    _CLIENT_OR_NONE: {
        _CLIENT: 2,  # d
        _CLIENT_OR_NULL: 2,  # d
        _CLIENT_OR_NONE: 1,  # a
        _IN_PART: 2,  # e
        _RECORD: 2,  # e
        _RECORD_OR_NULL: 2,  # e
        _RECORD_OR_NONE: 2,  # e
    },
    _RECORD: {
        _RECORD: 1,  # a
        _RECORD_OR_NULL: 1,  # b
    },
    _RECORD_OR_NULL: {
        _RECORD: 2,  # c
        _RECORD_OR_NULL: 1,  # a
    },
    _RECORD_OR_NONE: {
        _RECORD: 2,  # d
        _RECORD_OR_NULL: 2,  # d
        _RECORD_OR_NONE: 1,  # a
    },
}
"""By what is stated: what follows for which neighbours, in how many steps."""

_STRONGEST_FIRST = (Adjacency.REPLACE_ONE, Adjacency.REPLACE_SPECIAL, Adjacency.ADD_REMOVE)


def common(stated: Iterable[Neighbours], unit: Unit | None = None) -> Neighbours:
    """The neighbours for which releases with ``stated`` ones may be added up.

    Those that all of them cover, in the fewest steps together; of equal ones the strongest.

    Args:
        stated: one for each release, or each different one once.
        unit: whose; None: clients if all of them protect clients, else records.
    """
    found = set(stated)
    if unit is None:
        unit = Unit.CLIENT
        if any(each.unit == Unit.RECORD for each in found):
            unit = Unit.RECORD

    def together(wanted: Neighbours) -> float:
        return sum(each.steps(wanted) or math.inf for each in found)

    return min((Neighbours(unit, each) for each in _STRONGEST_FIRST), key=together)


def departure(stated: Neighbours, wanted: Neighbours) -> str | None:
    """One sentence where ``stated`` is not enough for ``wanted`` as it stands; None where it is."""
    steps = stated.steps(wanted)
    if steps == 1:
        return None
    if steps is None:
        return f"what is released with {stated} protects nothing with {wanted}"
    return f"what is released with {stated} counts twice with {wanted}"
