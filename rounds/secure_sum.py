"""One round's secure sum on the server: the phases of the protocol as Flower messages.

``CohortStrategy`` calls it where a plain round would sum: ``prepare`` exchanges keys and shares
before the cohort is asked to train, ``collect`` adds up the masked contributions as they come,
``finish`` has the survivors confirm each other and reveal what removes the masks of the sum.

The summed vector is a contribution's integers (``Codec.expand``, weight included) and the weight
itself as one more coordinate, modulo 2^b with b just large enough for the whole cohort.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from learning.contribution import Codec, Integers, MalformedError
from privacy.accounting import Threat
from privacy.events import Event, SecurelySummedEvent
from privacy.secure_aggregation import (
    Phase,
    SecureServer,
    SecureSumError,
    SecureSumSettings,
)
from privacy.statement import Exposure, by_participations
from rounds.message_size import message_size
from rounds.secure_journal import Journal
from rounds.untrusted_text import said

if TYPE_CHECKING:
    from rounds.setup import Round

RECORD = "secure_sum"
T = TypeVar("T")


def modulus_bits(codec: Codec, weight: int) -> tuple[int, bool]:
    """Bits that hold every sum of total ``weight`` and the weight; whether it has a sign."""
    least, greatest = codec.limits(weight)
    signed = least < 0
    bits = max(greatest, weight, -least).bit_length() + signed
    if bits > 64:
        raise ValueError(
            f"max_weight={weight}: all weights together may be at most {codec.capacity}"
        )
    return bits, signed


class SecureRound:
    """The secure sum of round ``about``; what happens goes into that round's record.

    ``run`` names the server's run and differs between runs. ``max_weight``: the largest weight
    of one client. ``timeout``: seconds for each phase. ``journal``: what outlives this process.
    """

    def __init__(
        self,
        settings: SecureSumSettings,
        run: str,
        about: Round,
        codec: Codec,
        max_weight: int,
        grid: Grid,
        timeout: float,
        journal: Journal,
    ) -> None:
        self.about, self.codec, self.max_weight = about, codec, max_weight
        self.grid, self.timeout, self.journal = grid, timeout, journal
        self.nodes = {c: node for node, clients in about.asked.items() for c in clients}
        cohort = list(self.nodes) if journal.terms is None else list(journal.terms.clients)
        bits, self.signed = modulus_bits(codec, max_weight * len(cohort))
        length = int(np.prod(codec.shape)) + 1
        self.terms = journal.terms or settings.terms(run, about.number, cohort, length, bits)
        self.server = SecureServer(self.terms)
        self.revealed = 0  # clients in the sum that was revealed
        self._sealed: dict[int, bytes] = {}

    def prepare(self) -> dict[int, list[int]]:
        """Phases ADVERTISE and SHARE; the clients that may now be asked to train, by node.

        Nobody when too few took part, or when an interrupted server has asked them.
        """
        try:
            advertised = self._exchange(Phase.ADVERTISE, dict.fromkeys(self.terms.clients, b""))
            shares = self._exchange(Phase.SHARE, self._checked(self.server.keys, advertised))
            self._sealed = self._checked(self.server.shares, shares)
        except SecureSumError as error:
            self.abort(str(error))
        if self.journal.masked is not None and self.journal.total is not None:
            self.server.take_up(self.journal.masked, self.journal.total)
            return {}
        return self._reachable(self._sealed)

    def abort(self, reason: str) -> None:
        """Nothing will be summed; those that did not fail by themselves failed for ``reason``."""
        for client in self.terms.clients:
            self.about.failed.setdefault(client, f"secure aggregation: {reason}")

    def invitation(self, clients: list[int]) -> ConfigRecord:
        """What goes to a node with the request to train: phase MASK of its clients."""
        record = self._record(Phase.MASK, {client: self._sealed[client] for client in clients})
        record["max_weight"] = self.max_weight
        return record

    def collect(self, clients: list[int], masked: NDArray[np.uint8]) -> None:
        """Add one node's masked contributions (clients, bytes) to the sum."""
        if masked.dtype != np.uint8 or masked.ndim != 2 or len(masked) != len(clients):
            raise MalformedError("masked contributions must be uint8[clients, bytes]")
        for client, row in zip(clients, masked, strict=True):
            try:
                self.server.add(client, row.tobytes())
            except SecureSumError as error:
                self.about.failed[client] = str(error)

    def keep(self, participations: Mapping[int, int]) -> None:
        """Phase MASK is over: what came in it can be asked for once only."""
        if self.journal.masked is None:
            self.journal.keep_masked(*self.server.masked, participations, self.about)

    def finish(self) -> tuple[list[int], Integers, int]:
        """Phases CONFIRM and REVEAL: who is in the sum, the sum itself, and its weight.

        Raises SecureSumError when too few are left; then nothing can be learned any more.
        """
        survivors = self.server.survivors_list()
        confirmed = self._exchange(Phase.CONFIRM, dict.fromkeys(self.server.survivors, survivors))
        words = self._checked(self.server.confirmations, confirmed)
        revealed = self._exchange(Phase.REVEAL, words)
        vector = self._checked(lambda replies: self.server.total(replies, self.signed), revealed)
        self.revealed = len(self.server.survivors)
        total = vector[:-1].reshape(self.codec.shape)
        return list(self.server.survivors), total, int(vector[-1])

    # Helpers --------------------------------------------------------------------------------

    def _exchange(self, phase: Phase, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        """Send each client its message of ``phase``; the answers that came back, by client."""
        if phase in self.journal.replies:
            return self.journal.replies[phase]
        messages, asked = [], self._reachable(requests)
        for node, clients in asked.items():
            record = self._record(phase, {client: requests[client] for client in clients})
            if phase is Phase.ADVERTISE:
                record["terms"] = json.dumps(self.terms.to_dict())
            content = RecordDict({RECORD: record})
            self.about.bytes_down += message_size(content)
            messages.append(
                Message(
                    content,
                    dst_node_id=node,
                    message_type="query",
                    group_id=str(self.about.number),
                )
            )
        answers: dict[int, bytes] = {}
        for reply in self.grid.send_and_receive(messages, timeout=self.timeout):
            clients = asked.pop(reply.metadata.src_node_id, [])
            try:
                answers |= self._read(reply, clients)
            except (KeyError, TypeError, ValueError) as error:
                self._lose(clients, f"rejected in phase {phase}: {error}")
        for clients in asked.values():
            self._lose(clients, f"no answer in phase {phase} before the deadline")
        self.journal.keep_replies(self.terms, phase, answers, self.about)
        return answers

    def _read(self, reply: Message, clients: list[int]) -> dict[int, bytes]:
        if reply.has_error():
            raise ValueError(said(reply.error.reason))
        self.about.bytes_up += message_size(reply.content)
        record = reply.content.config_records[RECORD]
        answered, messages = _list(record["clients"], int), _list(record["messages"], bytes)
        refused, reasons = _list(record["refused"], int), _list(record["reasons"], str)
        if sorted(answered + refused) != sorted(clients):
            raise ValueError("it answers for other clients than it was asked for")
        self.about.failed.update(zip(refused, map(said, reasons), strict=True))
        return dict(zip(answered, messages, strict=True))

    def _record(self, phase: Phase, messages: Mapping[int, bytes]) -> ConfigRecord:
        return ConfigRecord(
            {
                "phase": phase.value,
                "run": self.terms.run,
                "round": self.terms.round,
                "clients": list(messages),
                "messages": list(messages.values()),
            }
        )

    def _checked(self, step: Callable[[Mapping[int, bytes]], T], replies: Mapping[int, bytes]) -> T:
        """One step of the server; those whom it drops are reported."""
        known = set(self.server.dropped)
        try:
            return step(replies)
        finally:
            for client in self.server.dropped.keys() - known:
                self.about.failed[client] = self.server.dropped[client]

    def _reachable(self, clients: Iterable[int]) -> dict[int, list[int]]:
        """Those of ``clients`` that a node hosts, by node: after an interruption some may not."""
        chosen: dict[int, list[int]] = {}
        for client in sorted(clients):
            if client in self.nodes:
                chosen.setdefault(self.nodes[client], []).append(client)
        return chosen

    def _lose(self, clients: list[int], reason: str) -> None:
        self.about.failed.update(dict.fromkeys(clients, reason))


def _list(value: object, kind: type) -> list:
    if not isinstance(value, list) or not all(type(item) is kind for item in value):
        raise TypeError(f"expected a list of {kind.__name__}")
    return value


def secure_exposure(
    settings: SecureSumSettings,
    release: Event,
    participations: Mapping[int, int],
    survivors: int,
) -> Exposure:
    """What a server that sees sums only has learned of every client.

    ``release``: what one participation releases, ``survivors``: the fewest clients that any
    revealed sum was over.
    """
    honest = max(1, survivors - settings.colluders)
    per_round = SecurelySummedEvent(release, honest)
    assumptions = [
        f"every sum is over at least {survivors} clients, of whom at most {settings.colluders} "
        "side with the server"
    ]
    adversary = "a curious server, which sees sums only"
    if settings.is_on:
        assumptions.append("clients' public keys arrive unaltered (the server invents none)")
    else:
        adversary += " (secure aggregation simulated)"
        assumptions.append("the server forgot what it summed: in this run it saw every answer")
    released = {str(client): count for client, count in sorted(participations.items())}
    return Exposure(
        threat=Threat.SECURE_AGGREGATION,
        adversary=adversary,
        per_round=per_round,
        clients=by_participations(per_round, released or {"nobody": 0}),
        assumptions=tuple(assumptions),
    )
