"""The phases of secure sums as Flower messages: one to each node, for all of its clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from murmur.round.message_size import reply_size, request_size
from murmur.round.reply_limit import REPLIES
from murmur.round.secure_journal import Journal
from murmur.round.secure_question import RECORD
from murmur.round.untrusted_text import said
from murmur.secure_sum import Phase

if TYPE_CHECKING:
    from murmur.round.setup import Round


class SecureExchange:
    """Asks the clients of round ``about``, and notes there who fails.

    ``run`` names the server's run and differs between runs. ``timeout``: seconds for each phase.
    """

    def __init__(
        self, run: str, about: Round, grid: Grid, timeout: float, journal: Journal
    ) -> None:
        self.run, self.about, self.grid = run, about, grid
        self.timeout, self.journal = timeout, journal
        self.nodes = {c: node for node, clients in about.asked.items() for c in clients}

    def ask(self, phase: Phase, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        """Send each client its message of ``phase``; the answers that came back, by client."""
        if phase in self.journal.replies:
            return self.journal.replies[phase]
        messages, asked = [], self.reachable(requests)
        # Keys and shares: a few hundred bytes of each client for each other one.
        REPLIES.allow_bytes(512 * len(self.nodes) * max(map(len, asked.values()), default=0))
        for node, clients in asked.items():
            content = RecordDict({RECORD: self.record(phase, {c: requests[c] for c in clients})})
            self.about.bytes_down += request_size(content, clients)
            group = str(self.about.number)
            messages.append(
                Message(content, dst_node_id=node, message_type="query", group_id=group)
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
        self.journal.keep_replies(phase, answers, self.about)
        return answers

    def record(self, phase: Phase, messages: Mapping[int, bytes]) -> ConfigRecord:
        """What a node is sent."""
        return ConfigRecord(
            {
                "phase": phase.value,
                "run": self.run,
                "round": self.about.number,
                "clients": list(messages),
                "messages": list(messages.values()),
            }
        )

    def reachable(self, clients: Iterable[int]) -> dict[int, list[int]]:
        """Those of ``clients`` that a node hosts, by node: after an interruption some may not."""
        chosen: dict[int, list[int]] = {}
        for client in sorted(clients):
            if client in self.nodes:
                chosen.setdefault(self.nodes[client], []).append(client)
        return chosen

    def _read(self, reply: Message, clients: list[int]) -> dict[int, bytes]:
        if reply.has_error():
            raise ValueError(said(reply.error.reason))
        record = reply.content.config_records[RECORD]
        answered, messages = _list(record["clients"], int), _list(record["messages"], bytes)
        refused, reasons = _list(record["refused"], int), _list(record["reasons"], str)
        if sorted(answered + refused) != sorted(clients):
            raise ValueError("it answers for other clients than it was asked for")
        if len(messages) != len(answered) or len(reasons) != len(refused):
            raise ValueError("an answer and a client for each other")
        self.about.bytes_up += reply_size(reply.content, RECORD)
        self.about.failed.update(zip(refused, map(said, reasons), strict=True))
        return dict(zip(answered, messages, strict=True))

    def _lose(self, clients: list[int], reason: str) -> None:
        self.about.failed.update(dict.fromkeys(clients, reason))


def _list(value: object, kind: type) -> list:
    if not isinstance(value, list) or not all(type(item) is kind for item in value):
        raise TypeError(f"expected a list of {kind.__name__}")
    return value
