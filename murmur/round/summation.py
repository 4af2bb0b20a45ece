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

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flwr.app import RecordDict
from flwr.serverapp import Grid

from murmur.learning import codec as forms
from murmur.round.cohorts import require_weight

if TYPE_CHECKING:
    from murmur.round.phase import Outcome, Question
    from murmur.round.secure_summation import Sums


class Summation:
    """The server half: what becomes of the answers of one phase. Each way overrides what it needs.

    The phase calls the methods in their order: ``members`` and ``prepare`` once, ``invite`` for
    each message, ``accept`` for each reply that has a contribution, and ``finish`` once.
    ``outcome`` is the phase's: a summation notes there who fails, whose data may have been
    released, and what its own messages weigh.

    Attributes
    ----------
    added : Sum or Rows
        What has been added so far; audits' canaries are added to it at the end.
    side_by_side : bool
        Whether a node's contribution has a part for each of its clients; else it is their sum.
    """

    added: forms.Sum | forms.Rows
    side_by_side: bool

    def members(self, cohort: Sequence[int]) -> list[int]:
        """Those of ``cohort`` that are asked, ascending."""
        return list(cohort)

    def prepare(self, outcome: Outcome, grid: Grid) -> dict[int, list[int]]:
        """Whom to ask, by node: all of ``outcome.asked`` but those that cannot take part.

        ``grid``: for messages that a summation needs beforehand.
        """
        return outcome.asked

    def invite(self, clients: Sequence[int], content: RecordDict) -> None:
        """Add what a node's ``clients`` need to take part to the message ``content``."""

    def accept(self, clients: list[int], content: RecordDict) -> None:
        """Add one node's contribution, that of ``clients``.

        Raises MalformedError, KeyError, TypeError or ValueError on whatever no honest node sends;
        the total is then as it was.
        """

    def finish(self, outcome: Outcome) -> None:
        """All have answered that will: complete ``added``, and ``outcome.sizes``."""


class Plain(Summation):
    """The server adds up what it can read.

    Parameters
    ----------
    sums : Sums
        Has the groups that secure sums would have been over, whose sizes a simulation of them
        reports.
    question : Question
        What each client is asked; one of another weight than its public one is refused.
    """

    side_by_side = False

    def __init__(self, sums: Sums, question: Question) -> None:
        self.sums = sums
        self.question = question
        self.added: forms.Sum = forms.Sum(question.codec)

    def accept(self, clients: list[int], content: RecordDict) -> None:
        """Add a node's sum, or the packed release of its one client.

        Nothing is believed: sums must lie within what so many clients can give, and weights are
        compared with the public ones.
        """
        report = content.config_records["report"]
        array = forms.array_from_bytes(content.array_records["contribution"]["sum"].data)
        weight = require_weight(report["weight"], clients, self.question.weights.of)
        if not report["packed"]:
            self.added.add_total(clients, array, weight)
        elif len(clients) == 1:
            self.added.add(clients[0], array, weight)
        else:
            raise forms.MalformedError("a packed contribution comes from exactly one client")

    def finish(self, outcome: Outcome) -> None:
        """Nothing is missing but how many of each group have answered."""
        answered = set(self.added.clients)
        groups = self.sums.groups(outcome.clients, self.question.number)
        outcome.sizes = [len(answered.intersection(group)) for group in groups]


class Rows(Summation):
    """The server keeps each client's contribution, for aggregations that are no sums.

    It reads each of them, so only what a client's own noise hides is hidden.
    """

    side_by_side = True

    def __init__(self, question: Question) -> None:
        self.question = question
        self.added: forms.Rows = forms.Rows(question.codec)

    def accept(self, clients: list[int], content: RecordDict) -> None:
        """Take a row for each of ``clients``."""
        rows = forms.array_from_bytes(content.array_records["contribution"]["rows"].data)
        self.added.add_all(clients, rows, sum(map(self.question.weights.of, clients)))
