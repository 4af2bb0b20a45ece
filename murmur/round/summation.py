"""How the answers of a phase are added up, and the two ways that need no protocol.

Each way has two halves. A *node half* takes the releases of one message's clients and gives the
node's contribution; a *server half*, a ``Summation``, takes the nodes' contributions and gives the
phase's total. The two halves of a way stand together, since they share a form:

=============  ============================  ==============================================
way            a node's contribution         the server's total
=============  ============================  ==============================================
``Plain``      ``sum``: int64, or one        the sum of all clients' integers
               client's packed release
``Rows``       ``rows``: packed, (n, ...)    each client's integers, (clients, ...), for what
                                             is no sum: a median, say
``Secure``     ``masked``: uint8 (n, bytes)  as ``Plain``, of sums over enough clients
=============  ============================  ==============================================

The third way is ``murmur.round.secure_summation``; its node half is in ``murmur.round.host``,
beside the secrets that it needs. All have the same methods, so no phase, strategy or evaluation
asks which it has. What a node sends is untrusted: it is added as a whole or, by a MalformedError,
not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from flwr.app import RecordDict
from flwr.serverapp import Grid

from murmur.learning import codec as forms
from murmur.round.cohorts import Weights, require_weight

if TYPE_CHECKING:
    from murmur.round.phase import Outcome


class Summation(Protocol):
    """The server half: what becomes of the answers of one phase.

    The phase calls the methods in their order: ``members`` and ``prepare`` once, ``invite`` for
    each message, ``accept`` for each reply that has a contribution, and ``finish`` once.
    ``outcome`` is the phase's: a summation notes there who fails, whose data may have been
    released, and what its own messages weigh.

    Attributes
    ----------
    side_by_side : bool
        Whether a node's contribution has a part for each of its clients; else it is their sum.
    """

    side_by_side: bool

    @property
    def added(self) -> forms.Sum | forms.Rows:
        """What has been added so far; audits' canaries are added to it at the end."""

    def members(self, cohort: Sequence[int]) -> list[int]:
        """Those of ``cohort`` that are asked, ascending."""

    def prepare(self, outcome: Outcome, grid: Grid) -> dict[int, list[int]]:
        """Whom to ask, by node: all of ``outcome.asked`` but those that cannot take part.

        ``grid``: for messages that a summation needs beforehand.
        """

    def invite(self, clients: Sequence[int], content: RecordDict) -> None:
        """Add what a node's ``clients`` need to take part to the message ``content``."""

    def accept(self, clients: list[int], content: RecordDict) -> None:
        """Add one node's contribution, that of ``clients``.

        Raises MalformedError, KeyError, TypeError or ValueError on whatever no honest node sends;
        the total is then as it was.
        """

    def finish(self, outcome: Outcome) -> None:
        """All have answered that will: complete ``added``, and ``outcome.sizes``."""


class Plain:
    """The server adds up what it can read.

    Parameters
    ----------
    codec : Codec
        The form of one client's contribution.
    weights : Weights
        A client's public weight; any other is refused.
    groups : callable
        The groups of a cohort that secure sums would have been over, whose sizes a simulation of
        them reports.
    """

    side_by_side = False

    def __init__(
        self,
        codec: forms.Codec,
        weights: Weights,
        groups: Callable[[Sequence[int]], Sequence[Sequence[int]]],
    ) -> None:
        self.added = forms.Sum(codec)
        self.weights = weights
        self.groups = groups

    def members(self, cohort: Sequence[int]) -> list[int]:
        """All of them."""
        return list(cohort)

    def prepare(self, outcome: Outcome, grid: Grid) -> dict[int, list[int]]:
        """All that a node hosts."""
        return outcome.asked

    def invite(self, clients: Sequence[int], content: RecordDict) -> None:
        """Nothing is needed."""

    def accept(self, clients: list[int], content: RecordDict) -> None:
        """Add a node's sum, or the packed release of its one client.

        Nothing is believed: sums must lie within what so many clients can give, and weights are
        compared with the public ones.
        """
        report = content.config_records["report"]
        array = forms.array_from_bytes(content.array_records["contribution"]["sum"].data)
        weight = require_weight(report["weight"], clients, self.weights.of)
        if not report["packed"]:
            self.added.add_total(clients, array, weight)
        elif len(clients) == 1:
            self.added.add(clients[0], array, weight)
        else:
            raise forms.MalformedError("a packed contribution comes from exactly one client")

    def finish(self, outcome: Outcome) -> None:
        """Nothing is missing but how many of each group have answered."""
        answered = set(self.added.clients)
        groups = self.groups(outcome.clients)
        outcome.sizes = [len(answered.intersection(group)) for group in groups]


class Rows:
    """The server keeps each client's contribution, for aggregations that are no sums.

    It reads each of them, so only what a client's own noise hides is hidden.
    """

    side_by_side = True

    def __init__(self, codec: forms.Codec, weights: Weights) -> None:
        self.added = forms.Rows(codec)
        self.weights = weights

    def members(self, cohort: Sequence[int]) -> list[int]:
        """All of them."""
        return list(cohort)

    def prepare(self, outcome: Outcome, grid: Grid) -> dict[int, list[int]]:
        """All that a node hosts."""
        return outcome.asked

    def invite(self, clients: Sequence[int], content: RecordDict) -> None:
        """Nothing is needed."""

    def accept(self, clients: list[int], content: RecordDict) -> None:
        """Take a row for each of ``clients``."""
        rows = forms.array_from_bytes(content.array_records["contribution"]["rows"].data)
        self.added.add_all(clients, rows, sum(map(self.weights.of, clients)))

    def finish(self, outcome: Outcome) -> None:
        """Nothing is missing, and nothing was summed."""
