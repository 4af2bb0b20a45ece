"""One phase: a question to a cohort, and what becomes of the answers.

Training, an evaluation, a stage of clients before the rounds and a report to the researcher of a
simulation are phases, and this is the one place that sends them:

    phase = Phase(question, sums, setup)
    messages = phase.ask(grid)          # to each node, for its clients: one, or more where large
    outcome = phase.take(replies)       # the total, who answered, who failed, what it weighed

Replies are untrusted. One that no honest node sends is rejected as a whole: its clients have
failed, and their data count as released, since the node may have charged them all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from numpy.typing import NDArray

from murmur.compat.flower_messages import REPLIES
from murmur.learning.sums import SumAccumulator
from murmur.round import wire
from murmur.round.aggregator import Aggregator
from murmur.round.asked_log import OpenedQuestion
from murmur.round.question import Outcome, Question
from murmur.round.setup import SumSetup
from murmur.round.signed import QuestionSigner
from murmur.round.summation import summation_for
from murmur.round.task import (
    Task,
    opened_question,
    printable_line,
    question_digest,
    read_report,
)

if TYPE_CHECKING:
    from murmur.privacy.guarantee import Exposure  # loads SciPy

# A node's errors: before the code of its clients has begun, and once that code has ended. All
# others are not the node's own words: it may still be at work, and answer late.
_NOT_BEGUN = (ErrorCode.LOAD_CLIENT_APP_EXCEPTION, ErrorCode.INVALID_FAB)
_ENDED = (
    ErrorCode.UNKNOWN,
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION,
    ErrorCode.CLIENT_APP_CRASHED,
)
# Bytes of a reply in which clients' releases lie beside each other, from which on a node gets more
# than one message: it then holds no more of them at a time.
MAX_REPLY_BYTES = 2**28


class AuditCanaries(Protocol):
    """Clients without data, in the server's own process, that join a phase: an audit's canaries.

    They measure what a run leaks: a lower bound on ε beside the proven one. They release through
    the algorithm's own mechanism, hold nobody's data, and are never asked over the network.
    """

    def add_to(self, task: Task, total: SumAccumulator) -> None:
        """Add their releases to ``total``, which has all others'.

        Called once for each phase that counts, before its result is read. ``task``: of one of those
        that answered, with what the whole cohort was asked.
        """

    def observe(self, mean: NDArray[np.float64]) -> None:
        """See what a trusted server publishes of the sum, (d,).

        Called by strategies that publish a mean, once for each update of the model.
        """

    def state(self) -> dict[str, NDArray]:
        """Returns the arrays that a checkpoint must hold."""

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Take up what ``state`` returned."""

    def compose(self, exposures: Sequence[Exposure]) -> list[Exposure]:
        """``exposures`` with what was measured."""


class Phase:
    """``question`` on its way to a cohort and back: ``ask``, send, ``take``; each once.

    Args:
        question: What each client of the cohort is asked.
        sums: How this kind of phase is summed.
        setup: The run's setup; says on which nodes clients are.
        quorum: The share of the cohort that must answer for the total to count; 0: whoever answers
            counts.
        canaries: Join a phase that counts.

    Attributes:
        summation: Adds up this phase's answers.
        outcome: What has happened so far.
    """

    def __init__(
        self,
        question: Question,
        sums: Aggregator,
        setup: SumSetup,
        quorum: float = 0.0,
        canaries: AuditCanaries | None = None,
    ) -> None:
        self.question = question
        self.sums = sums
        self.setup = setup
        self.quorum = quorum
        self.canaries = canaries
        self.summation = summation_for(sums, question)
        self.outcome = Outcome(question.number)
        if sums.resumed_round is None:
            sums.resumed_round = question.number
        # A killed server may have asked this already: who is away now, or refuses, or whose app
        # does not begin, may have answered then.
        self._resumed = question.number == sums.resumed_round
        self._digest = b""  # of the question, once it is signed
        self._waiting: dict[tuple[str, int], list[int]] = {}  # by group and node

    def ask(self, grid: Grid) -> list[Message]:
        """The messages: to each node that hosts somebody of the cohort, for as many as ``_most``.

        Clients without an online node are reported and not charged. Under secure sums the phases
        before masking take place in here, over ``grid``. The caller sends the messages and hands
        the replies to ``take``.
        """
        question = self.question
        outcome = self.outcome
        cohort = self.summation.members(question.cohort)
        placement = self.setup.placement.place(grid, cohort)
        outcome.asked = placement.asked
        outcome.unavailable = len(placement.unavailable)
        outcome.failed.update(placement.unavailable)
        most = self._most()
        messages = []
        for node, clients in self.summation.prepare(outcome, grid).items():
            shares = range(0, len(clients), most)
            messages += [self._message(node, clients[i : i + most]) for i in shares]
        if self._resumed:
            now = {client for clients in self._waiting.values() for client in clients}
            outcome.possibly_released += self._charged(sorted(set(question.cohort) - now))
        return messages

    def take(self, replies: Iterable[Message]) -> Outcome:
        """Read what came back; replies to other phases are passed over.

        A node that has not replied has failed, and its clients' data may have been released. Under
        secure sums the phases after masking take place in here.

        Returns:
            Complete. ``total`` and ``weight`` mean something only where it is ``accepted``.
        """
        outcome = self.outcome
        for reply in replies:
            # Whatever is left is a duplicate, or comes from a node that was not asked.
            asked = reply.metadata.group_id, reply.metadata.src_node_id
            clients = self._waiting.pop(asked, None)
            if clients is not None:
                self._read(clients, reply)
        for clients in self._waiting.values():
            self._lose(clients, "no answer before the deadline")
        self._waiting.clear()
        self.summation.finish(outcome)
        added = self.summation.added
        outcome.answered = sorted(added.clients)
        if self.sums.signer is not None and self.question.event is not None:
            self.sums.signer.known.update(outcome.answered)
        outcome.possibly_released = sorted(set(outcome.possibly_released))  # each of them once
        if self.question.event is not None:
            self.sums.record_sizes(outcome.sum_sizes)
        outcome.accepted = self._counts()
        if outcome.accepted and self.canaries is not None:
            # Canaries are refused where answers are not summed, before a run begins.
            total = cast(SumAccumulator, added)
            self.canaries.add_to(self.question.task((total.clients or [0])[0]), total)
        outcome.total = added.total
        outcome.weight = added.weight
        return outcome

    def run(self, grid: Grid, timeout: float) -> Outcome:
        """Ask, wait ``timeout`` seconds, and take the answers; for phases before the rounds."""
        return self.take(list(grid.send_and_receive(self.ask(grid), timeout=timeout)))

    # Helpers --------------------------------------------------------------------------------

    def _most(self) -> int:
        """Of how many clients one message asks: of all that a node has, where it can."""
        if self.question.alone:
            return 1
        if self.summation.side_by_side:
            return max(1, MAX_REPLY_BYTES // self.question.codec.packed_bytes)
        return len(self.question.cohort)

    def _message(self, node: int, clients: list[int]) -> Message:
        """One node's message, noted as waited for.

        Its group id names round, purpose and the first client, so that a reply finds its clients
        again where a node gets several.
        """
        question = self.question
        content = question.content(clients)
        self.summation.invite(clients, content)
        self._sign(clients, content)
        REPLIES.allow(math.prod(question.codec.shape), len(clients))
        self.outcome.bytes_down += wire.request_size(content, clients)
        group = f"{question.number} {question.purpose} {clients[0]}"
        self._waiting[group, node] = clients
        return Message(content, dst_node_id=node, message_type=question.kind, group_id=group)

    def _sign(self, clients: list[int], content: RecordDict) -> None:
        """Add the server's signature, where it has a key and the answer costs something."""
        question = self.question
        signer = self.sums.signer
        if signer is None or question.event is None:
            return
        if not self._digest:
            self._digest = self._note(content, signer)
        terms = self.summation.terms(clients)
        signer.sign(content, clients, question.number, question.purpose, self._digest, terms)

    def _note(self, content: RecordDict, signer: QuestionSigner) -> bytes:
        """The question's digest; what it opens to is on disk when this returns."""
        question = self.question
        opened = opened_question(content, question.kind, self.setup.started)
        digest = question_digest(opened)
        if signer.log is not None:
            about = question.number, question.purpose, digest.hex()
            signer.log.add_question(OpenedQuestion(*about, opened))
        return digest

    def _read(self, clients: list[int], reply: Message) -> None:
        """Take one node's reply: an error, a contribution, refusals, or what no node may send.

        It is taken as a whole, or its clients have failed as a whole. A rejected reply counts as
        released: its node may have charged its clients all the same.
        """
        outcome = self.outcome
        question = self.question
        if reply.has_error():
            reason = printable_line(reply.error.reason)
            self._lose(clients, f"node failed: {reason}", reply.error.code)
            return
        try:
            answered, refused = read_report(reply.content.config_records["report"], clients)
            size = wire.reply_size(reply.content, "report", question.codec, question.weights.of)
            if answered:  # last: what is rejected must be in no sum
                self.summation.accept(answered, reply.content)
            outcome.bytes_up += size
            # As large as the model, and in the sum; Flower's views of the records live on.
            for record in reply.content.array_records.values():
                record.clear()
        except (LookupError, TypeError, ValueError) as error:
            outcome.fail(clients, f"rejected: {printable_line(error)}")
            outcome.possibly_released += clients
            return
        outcome.failed.update(refused)
        outcome.possibly_released += answered
        if self._resumed and refused:
            outcome.possibly_released += self._charged(list(refused))

    def _lose(self, clients: list[int], reason: str, code: int | None = None) -> None:
        """Their node sent an error with ``code``, or, where that is None, nothing.

        Where the clients' code had not begun, nothing was released. Where it has ended, the
        placement may know who was charged. Else it may still be at work: all count as released.
        """
        self.outcome.fail(clients, reason)
        if code in _ENDED:
            clients = self._charged(clients)
        if code not in _NOT_BEGUN or self._resumed:
            self.outcome.possibly_released += clients

    def _charged(self, clients: list[int]) -> list[int]:
        """Returns the ``clients`` that may have released something before their node ended."""
        question = self.question
        return self.setup.placement.released(clients, question.number, question.purpose)

    def _counts(self) -> bool:
        """Returns True if enough clients answered, and enough are in every sum for its noise."""
        outcome = self.outcome
        least = math.ceil(self.quorum * outcome.cohort_size)
        # Distributed noise needs enough clients in every sum; secure sums enforce this.
        smallest = min((size for size in outcome.sum_sizes if size), default=0)
        return len(outcome.answered) >= least and smallest >= self.sums.min_sum_size
