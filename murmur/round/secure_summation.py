"""Secure sums on the server: ``murmur.secure_sum`` driven over Flower's messages.

A ``SecureSummation`` is one phase's, in which the server learns sums only. A cohort is divided into
groups with a sum each. ``prepare`` exchanges keys and shares before anybody is asked to train,
``accept`` adds up masked contributions as they come, ``finish`` has the survivors confirm each
other and reveal what removes each sum's masks. For a server that follows the protocol (``server``
of the settings) there is no CHECK and no CONFIRM. A group that fails costs the phase its own part
only.

The summed vector is a contribution's integers (``Codec.expand``, weight included) and the weight
itself as one more coordinate, modulo 2^b with b just large enough for the whole group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from murmur.compat.flower_messages import REPLIES
from murmur.files import replace_file
from murmur.format import framed, unframed
from murmur.learning.array_bytes import MalformedError, array_from_bytes
from murmur.learning.array_file import DamagedError, from_bytes, to_bytes
from murmur.learning.codec import Codec
from murmur.learning.sums import SumAccumulator
from murmur.privacy.events import Event
from murmur.round.aggregator import Aggregator, Summation
from murmur.round.asked_log import OpenedSum
from murmur.round.cohorts import require_weight
from murmur.round.question import Outcome, Question
from murmur.round.setup import SumSetup
from murmur.round.task import AHEAD, RECORD, RunError, printable_line, question, read_report
from murmur.round.wire import reply_size, request_size
from murmur.secure_sum.server import SecureServer
from murmur.secure_sum.terms import SecureSumError, Stage, SumTerms, release_digest

Replies = Mapping[int, bytes]


def modulus_bits(codec: Codec, weight: int) -> int:
    """Bits that hold every sum of total ``weight`` and the weight.

    So sums modulo 2^bits are the sums themselves. ValueError where that is more than 64.
    """
    least, greatest = codec.limits(weight)
    bits = max(greatest, weight, -least).bit_length() + (least < 0)
    if bits > 64:
        raise ValueError(f"weight={weight}: all weights together may be at most {codec.capacity}")
    return bits


class SecureSummation(Summation):
    """The secure sums of one phase, one for each group; see ``Summation`` for the methods.

    Args:
        sums: What lasts from phase to phase.
        question: What each client is asked.
        event: What one release costs by itself.

    Attributes:
        added: The sum over all groups that were revealed so far.
        journal: The journal from which an interrupted phase goes on.
        spoiled: Who was in sums that were impossible: by these, group testing names liars.
        begun: This phase's sums, where clients have advertised for them in the phase before.
        following: The sums of the next phase, for which REVEAL asks clients to advertise.
    """

    side_by_side = True

    def __init__(self, sums: Aggregator, question: Question, event: Event) -> None:
        self.sums = sums
        self.question = question
        self.event = event
        self.added: SumAccumulator = SumAccumulator(question.codec)
        self.journal = Journal(question.purpose, question.number, sums.journal)
        self.spoiled: list[tuple[int, ...]] = []  # who was in sums that were impossible
        self.begun: NextSums | None = None
        self.following: NextSums | None = None
        self._sums: list[SecureServer] = []  # none where no sum could begin
        self._going: list[SecureServer] = []  # those that can still be revealed
        self._sum_of: dict[int, SecureServer] = {}
        self._lists: dict[int, bytes] = {}  # what MASK tells each client

    def members(self, cohort: Sequence[int]) -> list[int]:
        """Without those that have lied; after an interruption those that were asked before.

        A cohort that was drawn from the noise stream cannot be drawn again.
        """
        if self.journal.terms:
            return [client for terms in self.journal.terms for client in terms.clients]
        return [client for client in cohort if client not in self.sums.blame.accused]

    def prepare(self, outcome: Outcome, grid: Grid) -> dict[int, list[int]]:
        """Phases ADVERTISE, SHARE and CHECK; whom to ask, by node.

        Nobody where too few take part, or where an interrupted server has asked them already.
        """
        self.outcome = outcome
        self.journal.restore(outcome)
        try:
            terms = self.journal.terms or self.proposed(outcome.clients)
            self._sums = [self._server(each) for each in terms]
        except ValueError as error:
            # A cohort that was drawn, or placed, too small for its own rules.
            outcome.fail(outcome.clients, f"secure aggregation: {error}")
            return {}
        self.journal.terms = terms
        self.exchange = Exchange(self.sums.setup, terms[0].run, outcome, grid, self.journal)
        self._going = list(self._sums)
        self._sum_of = {c: each for each in self._sums for c in each.terms.clients}
        proposed: dict[int, bytes] = {}
        for group in terms:
            proposed |= dict.fromkeys(group.clients, group.sent)
        advertised = self._advertised(terms)
        left = {client: sent for client, sent in proposed.items() if client not in advertised}
        if left:
            advertised |= self.exchange.ask(Stage.ADVERTISE, left)
        keys = self._next(SecureServer.keys, advertised)
        shares = self._next(SecureServer.shares, self.exchange.ask(Stage.SHARE, keys))
        if self._has(Stage.CHECK):
            self._next(_hear, self.exchange.ask(Stage.CHECK, shares))
        # Of whom no doubt is left is named before anybody masks.
        outcome.accused |= self.sums.blame.add(outcome.accused, self._conflicts())
        self._lists = self._next(lambda each, _: each.lists(self.sums.blame.accused), {})
        if self.journal.masked is not None:
            for each, (clients, total) in zip(self._sums, self.journal.masked, strict=True):
                each.take_up(clients, total, self.journal.asked)
            return {}
        return self.exchange.reachable(self._lists)

    def invite(self, clients: Sequence[int], content: RecordDict) -> None:
        """Add phase MASK of a node's clients to ``content``, the request to train."""
        asked = self._sums[0].asked  # all of a phase are asked alike
        if not asked:
            asked = question(content, self.question.kind, self.sums.setup.started)
        for each in self._sums:
            each.asked = asked
        content[RECORD] = self.exchange.record(Stage.MASK, {c: self._lists[c] for c in clients})

    def terms(self, clients: Iterable[int]) -> list[bytes]:
        """Terms of the clients' groups."""
        return sorted({self._sum_of[client].terms.terms_digest for client in clients})

    def accept(self, clients: list[int], content: RecordDict) -> None:
        """Add one node's masked contributions (clients, bytes) to the sums.

        A vector of a wrong length accuses its client. SecureSumError for a client that was not
        asked or answers twice, neither of which gets past ``murmur.round.task.read_report``.
        """
        masked = array_from_bytes(content.array_records["contribution"]["masked"].data)
        if masked.dtype != np.uint8 or masked.ndim != 2 or len(masked) != len(clients):
            raise MalformedError("masked contributions must be uint8[clients, bytes]")
        for client, row in zip(clients, masked, strict=True):
            self._sum_of[client].add(client, row)

    def finish(self, outcome: Outcome) -> None:
        """Phases CONFIRM, if there is one, and REVEAL: add every group's sum to the total.

        What has come in phase MASK can be asked for once only, so it is on disk before.
        """
        if not self._sums:
            return
        self._note()
        if self.journal.masked is None:
            masked = [each.masked for each in self._sums]
            self.journal.keep_masked(masked, self._sums[0].asked, outcome)
        requests = self._next(lambda each, _: each.survivors_list(), {})
        if self._has(Stage.CONFIRM):
            confirmed = self.exchange.ask(Stage.CONFIRM, requests)
            requests = self._next(SecureServer.confirmations, confirmed)
        self._log()
        revealed = self.exchange.ask(Stage.REVEAL, requests, self.following)
        self._next(self._reveal, revealed)
        found = [*self.spoiled, *self._conflicts()]
        outcome.accused |= self.sums.blame.add(outcome.accused, found)

    def proposed(self, clients: Sequence[int]) -> list[SumTerms]:
        """The terms of each group's sum over ``clients``.

        ValueError where these are too few for them.
        """
        sums = self.sums
        question = self.question
        weights = question.weights
        groups = sums.groups(clients, question.number)
        there = min(map(len, groups))
        if there < sums.min_anonymity_set:
            raise ValueError(f"a sum needs {sums.min_anonymity_set} clients, and {there} are there")
        sums.require_enough(groups)
        # A client compares it with what it is about to release. One that finds another digest
        # refuses, uncharged: the others' noise would not be what its event counts on.
        release = release_digest(
            sums.setup.strategy,
            question.purpose,
            question.codec,
            self.event,
            weights.least,
            weights.greatest,
            sums.setup.seeded_noise,
        )
        terms = []
        for group, clients in enumerate(groups):
            terms.append(
                sums.settings.terms(
                    sums.run,
                    question.number,
                    clients,
                    length=int(np.prod(question.codec.shape)) + 1,
                    bits=modulus_bits(question.codec, weights.greatest * len(clients)),
                    least=sums.min_anonymity_set,
                    group=group,
                    purpose=question.purpose,
                    release=release,
                    least_weight=weights.least,
                    greatest_weight=weights.greatest,
                )
            )
        return terms

    # Helpers --------------------------------------------------------------------------------

    def _advertised(self, terms: Sequence[SumTerms]) -> dict[int, bytes]:
        """Advertisements for these very terms that came with the phase before, by client."""
        if self.begun is None or self.begun.terms != terms:
            return {}
        return dict(self.begun.advertised)

    def _has(self, stage: Stage) -> bool:
        """True if the sums, which are all of one kind, have the ``stage``."""
        return stage in self._sums[0].terms.stages

    def _conflicts(self) -> list[tuple[int, int]]:
        """Pairs of clients in which one has lied, as the sums have shown so far."""
        return [pair for each in self._sums for pair in each.conflicts]

    def _server(self, terms: SumTerms) -> SecureServer:
        """One group's sum; ValueError where the peers file lacks one of its clients."""
        settings = self.sums.settings
        dropouts = int(settings.dropouts * terms.holders)  # expected, of a client's share holders
        blame = self.sums.blame
        pinned = settings.pinned(terms.clients)
        return SecureServer(terms, dropouts, blame.most, pinned, blame.contradictions)

    def _log(self) -> None:
        """Keep what the statement is to say of the sums whose masked answers were taken."""
        signer = self.sums.signer
        if signer is None or signer.log is None:
            return
        for each in self._sums:
            if each.survivors:
                signer.log.add_sum(OpenedSum.of(each))

    def _reveal(self, each: SecureServer, replies: Replies) -> dict[int, bytes]:
        """Unmask one sum and add it to the total; SecureSumError where it is impossible."""
        codec = self.question.codec
        vector = each.total(replies, signed=codec.limits(1)[0] < 0)
        clients = each.survivors
        self.outcome.sum_sizes.append(len(clients))
        try:
            weight = require_weight(int(vector[-1]), clients, self.question.weights.of)
            self.added.add_total(list(clients), vector[:-1].reshape(codec.shape), weight)
        except MalformedError as error:
            self.spoiled.append(clients)
            raise SecureSumError(
                f"the sum is not possible: {error}. One of its clients has lied, and nothing "
                "proves which; with privacy.secure_sum.groups above 1 it costs its own group "
                "only, and is found in time"
            ) from error
        return {}

    def _next(
        self, step: Callable[[SecureServer, Replies], dict[int, bytes]], replies: Replies
    ) -> dict[int, bytes]:
        """One step of each sum; one that cannot go on costs its own clients only."""
        requests: dict[int, bytes] = {}
        for each in list(self._going):
            clients = each.terms.clients
            try:
                requests |= step(each, {c: replies[c] for c in clients if c in replies})
            except SecureSumError as error:
                self._going.remove(each)
                self._note()
                for client in set(clients) - self.outcome.accused.keys():
                    self.outcome.failed.setdefault(client, f"secure aggregation: {error}")
        self._note()
        return requests

    def _note(self) -> None:
        """Who was found to have lied, and who was left out."""
        for each in self._sums:
            self.outcome.failed |= each.dropped
            self.outcome.accused |= each.accused
        for client in self.outcome.accused:
            self.outcome.failed.pop(client, None)


def _hear(each: SecureServer, replies: Replies) -> dict[int, bytes]:
    """After CHECK: who holds whose shares; there is nothing to send on."""
    each.checked(replies)
    return {}


@dataclass
class Exchange:
    """The protocol's phases as Flower messages: one to each node, for all of its clients.

    Attributes:
        setup: Says how long a phase may take, and of which type messages are.
        run: Names the server's run and differs between runs.
        outcome: Who fails is noted in it; its ``asked`` says which node hosts whom.
        grid: By which nodes are reached.
        journal: Holds the replies of phases that were over before an interruption.
    """

    setup: SumSetup
    run: str
    outcome: Outcome
    grid: Grid
    journal: Journal

    @cached_property
    def nodes(self) -> dict[int, int]:
        """Which node hosts each client."""
        return {c: node for node, clients in self.outcome.asked.items() for c in clients}

    def ask(
        self, phase: Stage, requests: Mapping[int, bytes], following: NextSums | None = None
    ) -> dict[int, bytes]:
        """Send each client its message of ``phase``; the answers that came back, by client.

        Answers are bytes that nobody has read yet. A node whose reply is malformed, or does not
        come in time, has failed with all of its clients. After an interruption the answers are the
        journal's, and nothing is sent. ``following``: the sums for which these nodes advertise with
        the same message; gets what they answer.
        """
        if phase in self.journal.replies:
            return self.journal.replies[phase]
        asked = self.reachable(requests)
        # Keys and shares: a few hundred bytes of each client for each other one.
        REPLIES.allow_bytes(512 * len(self.nodes) * max(map(len, asked.values()), default=0))
        messages = []
        for node, clients in asked.items():
            content = RecordDict({RECORD: self.record(phase, {c: requests[c] for c in clients})})
            self.outcome.bytes_down += request_size(content, clients)
            if following is not None:
                self.outcome.bytes_down += following.add_to(content, node)
            group = str(self.outcome.number)
            messages.append(
                Message(content, dst_node_id=node, message_type=self.setup.query, group_id=group)
            )
        answers: dict[int, bytes] = {}
        for reply in self.grid.send_and_receive(messages, timeout=self.setup.round_timeout):
            clients = asked.pop(reply.metadata.src_node_id, [])
            try:
                if following is not None:
                    self.outcome.bytes_up += following.take(reply)
                answers |= self._read(reply, clients)
            except (KeyError, TypeError, ValueError) as error:
                self.outcome.fail(clients, f"rejected in phase {phase}: {error}")
        for clients in asked.values():
            self.outcome.fail(clients, f"no answer in phase {phase} before the deadline")
        self.journal.keep_replies(phase, answers, self.outcome)
        return answers

    def record(self, phase: Stage, messages: Mapping[int, bytes]) -> ConfigRecord:
        """Returns the record for a node in ``phase``: its clients, and which message is whose.

        Messages that several clients share, terms and lists, are in it once.
        """
        return _record(phase, self.run, self.outcome.number, messages)

    def reachable(self, clients: Iterable[int]) -> dict[int, list[int]]:
        """Returns the ``clients`` that have a node, by node: after an interruption some may not."""
        chosen: dict[int, list[int]] = {}
        for client in sorted(clients):
            if client in self.nodes:
                chosen.setdefault(self.nodes[client], []).append(client)
        return chosen

    def _read(self, reply: Message, clients: list[int]) -> dict[int, bytes]:
        """One node's answers; KeyError, TypeError or ValueError where it is none that is due."""
        if reply.has_error():
            raise ValueError(printable_line(reply.error.reason))
        answers, refused = _answers(reply.content.config_records[RECORD], clients)
        self.outcome.bytes_up += reply_size(reply.content, RECORD)
        self.outcome.failed.update(refused)
        return answers


def _record(phase: Stage, run: str, number: int, messages: Mapping[int, bytes]) -> ConfigRecord:
    """``messages`` of one phase of one sum, as they travel to a node."""
    place = {message: i for i, message in enumerate(dict.fromkeys(messages.values()))}
    return ConfigRecord(
        {
            "phase": phase.value,
            "run": run,
            "round": number,
            "clients": list(messages),
            "messages": list(place),
            "which": [place[message] for message in messages.values()],
        }
    )


def _answers(record: ConfigRecord, clients: list[int]) -> tuple[dict[int, bytes], dict[int, str]]:
    """Answers of ``clients`` in one node's ``record``, and who refuses, and why.

    KeyError, TypeError or ValueError where it is no answer that is due.
    """
    answered, refused = read_report(record, clients)
    messages: Any = record["messages"]
    if not isinstance(messages, list) or not all(type(each) is bytes for each in messages):
        raise MalformedError("answers must be a list of bytes")
    return dict(zip(answered, messages, strict=True)), refused


@dataclass
class NextSums:
    """The sums of the next phase, for which clients advertise with REVEAL of the one before.

    ADVERTISE is a message as ever: an advertisement is signed over the next sum's terms, and a
    client answers it after REVEAL, when the sum before is over for it. Who does not answer is asked
    again in the next phase. No journal keeps what came.

    Attributes:
        terms: Of each group's sum; clients join them, so that no others of this run and round can
            take their place.
        nodes: Clients by node.
        advertised: Answers that came back, by client.
    """

    terms: list[SumTerms]
    nodes: Mapping[int, list[int]]
    advertised: dict[int, bytes] = field(default_factory=dict)

    def add_to(self, content: RecordDict, node: int) -> int:
        """Add the request to ``node``'s clients to its message; returns what it weighs."""
        sent = {client: each.sent for each in self.terms for client in each.clients}
        messages = {client: sent[client] for client in self.nodes.get(node, ())}
        if not messages:
            return 0
        first = self.terms[0]
        content[AHEAD] = _record(Stage.ADVERTISE, first.run, first.round, messages)
        return request_size(RecordDict({RECORD: content[AHEAD]}), list(messages))

    def take(self, reply: Message) -> int:
        """Take a node's answers from its reply, if there are any; returns what they weigh.

        KeyError, TypeError or ValueError where they are malformed.
        """
        if reply.has_error() or AHEAD not in reply.content.config_records:
            return 0
        clients = self.nodes.get(reply.metadata.src_node_id, [])
        answers, _ = _answers(reply.content.config_records[AHEAD], clients)
        self.advertised |= answers
        return reply_size(reply.content, AHEAD)


_FORMAT = 2  # of a run's file of sums; without one, questions did not bind a message's type
_TOTAL = "total"
_WHO = "clients"  # of a phase's replies
_SAID = "replies"  # theirs, framed


class Journal:
    """The secure sums of one phase on disk, from which an interrupted server resumes them.

    In phase MASK the clients pay, and they answer once. A server that forgot their keys and shares
    could not read what they answered, and could not ask again. So it keeps the terms, the replies
    to each phase, and the masked total: nothing that it has not been sent, and no secret of a
    client's. With the same terms and replies it sends the same messages, which get the same
    answers.

    Attributes:
        purpose, number: The phase's, and its round's: what comes before the rounds has the number
            of the first.
        path: The run's file of sums, which each phase's replace; None: nothing is kept.
        terms: Terms of each group's sum; empty before the clients were asked.
        masked: For each group, the clients whose vectors are in it, and the masked total; None
            before MASK is over.
        asked: Digest of what clients were asked in phase MASK.

    Raises:
        RunError: The file is not what was written, or another version wrote it in this phase.
    """

    def __init__(self, purpose: str, number: int, path: Path | None) -> None:
        self.purpose = purpose
        self.number = number
        self.path = path
        self.terms: list[SumTerms] = []
        self.replies: dict[Stage, dict[int, bytes]] = {}
        self.masked: list[tuple[list[int], NDArray]] | None = None
        self.asked = b""
        self._released: list[int] = []
        self._outcome: dict[str, Any] = {}
        if path is not None and path.exists():
            try:
                arrays, facts = from_bytes(path.read_bytes())
            except DamagedError as error:
                raise RunError(f"{path}: {error}; start the run anew") from error
            self._read(arrays, facts)

    def restore(self, outcome: Outcome) -> None:
        """Add what had happened in the phase before the interruption to ``outcome``.

        Failures, accusations, bytes, and whose data may have been released. Nothing where there was
        none.
        """
        if self._outcome:
            for name in ("failed", "accused"):
                before = {int(c): why for c, why in self._outcome[name].items()}
                setattr(outcome, name, before | getattr(outcome, name))
            outcome.unavailable += self._outcome["away"]
            outcome.bytes_up += self._outcome["bytes_up"]
            outcome.bytes_down += self._outcome["bytes_down"]
            outcome.possibly_released += self._released

    def keep_replies(self, phase: Stage, replies: Mapping[int, bytes], outcome: Outcome) -> None:
        """``replies`` are all that came in ``phase``."""
        if self.path is not None:
            self.replies[phase] = dict(replies)
            self._keep(self.path, outcome)

    def keep_masked(
        self, masked: list[tuple[list[int], NDArray]], asked: bytes, outcome: Outcome
    ) -> None:
        """Phase MASK is over: whoever answered it has released something.

        ``masked``: as the attribute. ``asked``: digest of the question. On disk when this returns.
        """
        if self.path is not None:
            self.masked = masked
            self.asked = asked
            self._released = outcome.possibly_released
            self._keep(self.path, outcome)

    def _keep(self, path: Path, outcome: Outcome) -> None:
        masked = None
        if self.masked is not None:
            masked = [clients for clients, _ in self.masked]
        facts = {
            "format": _FORMAT,
            "purpose": self.purpose,
            "round": self.number,
            "terms": [terms.to_dict() for terms in self.terms],
            "masked": masked,
            "asked": self.asked.hex(),
            "released": self._released,
            "outcome": {
                "away": outcome.unavailable,
                "failed": outcome.failed,
                "accused": outcome.accused,
                "bytes_up": outcome.bytes_up,
                "bytes_down": outcome.bytes_down,
            },
        }
        arrays = {}
        for phase, replies in self.replies.items():
            arrays[f"{phase}.{_WHO}"] = np.array(list(replies), np.int64)
            arrays[f"{phase}.{_SAID}"] = np.frombuffer(framed(*replies.values()), np.uint8)
        for place, (_, total) in enumerate(self.masked or []):
            arrays[f"{_TOTAL}.{place}"] = total
        replace_file(path, to_bytes(arrays, facts))

    def _read(self, arrays: dict[str, NDArray], facts: dict[str, Any]) -> None:
        if (facts.get("purpose"), facts["round"]) != (self.purpose, self.number):
            return  # a phase that was finished
        if facts.get("format") != _FORMAT:
            raise RunError(
                f"{self.path}: another version of Murmur began this sum, and its clients have"
                " signed what that version asks; resume the run with it (provenance.json names"
                " it), or start the run anew"
            )
        self.terms = [SumTerms.from_dict(terms) for terms in facts["terms"]]
        self.asked = bytes.fromhex(facts["asked"])
        self._released = facts["released"]
        self._outcome = facts["outcome"]
        if facts["masked"] is not None:
            self.masked = [
                (clients, arrays.pop(f"{_TOTAL}.{place}"))
                for place, clients in enumerate(facts["masked"])
            ]
        for phase in Stage:
            if f"{phase}.{_WHO}" in arrays:
                said = unframed(arrays[f"{phase}.{_SAID}"].tobytes())
                who = arrays[f"{phase}.{_WHO}"].tolist()
                self.replies[phase] = dict(zip(who, said, strict=True))
