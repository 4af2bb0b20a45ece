"""How the answers of a phase are added up: plainly, as rows, or in secure sums.

Each way has two halves. A *node half* takes the releases of one message's clients and gives the
node's contribution; a *server half*, a ``Summation``, takes the nodes' contributions and gives the
phase's total. The two halves of a way stand together, since they share a form:

===================  ============================  =============================================
way                  a node's contribution         the server's total
===================  ============================  =============================================
``PlainSummation``   ``sum``: int64, or one        the sum of all clients' integers
                     client's packed release
``RowSummation``     ``rows``: packed, (n, ...)    each client's integers, (clients, ...), for
                                                   what is no sum: a median, say
``SecureSummation``  ``masked``: uint8 (n, bytes)  as the first, of sums over enough clients
===================  ============================  =============================================

All have the same methods, so no phase, strategy or evaluation asks which it has: ``summation_for``
chooses. The node halves are in ``murmur.round.collectors``, secure sums in
``murmur.round.secure_summation``. What a node sends is untrusted: it is added as a whole or, by a
MalformedError, not at all.
"""

from __future__ import annotations

from flwr.app import RecordDict

from murmur.learning.array_bytes import MalformedError, array_from_bytes
from murmur.learning.sums import RowStore, SumAccumulator
from murmur.round.aggregator import Aggregator, Summation
from murmur.round.cohorts import require_weight
from murmur.round.question import Outcome, Question
from murmur.round.secure_summation import SecureSummation


class PlainSummation(Summation):
    """The server adds up what it can read.

    Args:
        sums: Has the groups that secure sums would have been over, whose sizes a simulation of
            them reports.
        question: What each client is asked; one of another weight than its public one is refused.
    """

    side_by_side = False

    def __init__(self, sums: Aggregator, question: Question) -> None:
        self.sums = sums
        self.question = question
        self.added: SumAccumulator = SumAccumulator(question.codec)

    def accept(self, clients: list[int], content: RecordDict) -> None:
        """Add a node's sum, or the packed release of its one client.

        Nothing is believed: sums must lie within what so many clients can give, and weights are
        compared with the public ones.
        """
        report = content.config_records["report"]
        array = array_from_bytes(content.array_records["contribution"]["sum"].data)
        weight = require_weight(report["weight"], clients, self.question.weights.of)
        if not report["packed"]:
            self.added.add_total(clients, array, weight)
        elif len(clients) == 1:
            self.added.add(clients[0], array, weight)
        else:
            raise MalformedError("a packed contribution comes from exactly one client")

    def finish(self, outcome: Outcome) -> None:
        """Nothing is missing but how many of each group have answered."""
        answered = set(self.added.clients)
        groups = self.sums.groups(outcome.clients, self.question.number)
        outcome.sum_sizes = [len(answered.intersection(group)) for group in groups]


class RowSummation(Summation):
    """The server keeps each client's contribution, for aggregations that are no sums.

    It reads each of them, so only what a client's own noise hides is hidden.
    """

    side_by_side = True

    def __init__(self, question: Question) -> None:
        self.question = question
        self.added: RowStore = RowStore(question.codec)

    def accept(self, clients: list[int], content: RecordDict) -> None:
        """Take a row for each of ``clients``."""
        rows = array_from_bytes(content.array_records["contribution"]["rows"].data)
        self.added.add_all(clients, rows, sum(map(self.question.weights.of, clients)))


def summation_for(sums: Aggregator, question: Question) -> Summation:
    """Returns what sums the answers to ``question``; one is made for each phase.

    Rows, where this kind of phase needs them; secure sums where they are on; else a plain sum. A
    report of a simulation needs no secrecy.
    """
    if sums.rows:
        return RowSummation(question)
    if not sums.settings.is_on or question.event is None:
        return PlainSummation(sums, question)
    return SecureSummation(sums, question, question.event())
