"""A question to a cohort, and the outcome of asking it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from murmur.learning.codec import Codec, Integers
from murmur.privacy.events import Event
from murmur.round import cohorts
from murmur.round.task import Task

# Attributes that a checkpoint holds, by their names in that file.
_FACTS = {
    "number": "number",
    "answered": "answered",
    "failed": "failed",
    "accused": "accused",
    "counted": "accepted",
    "bytes_down": "bytes_down",
    "bytes_up": "bytes_up",
}


@dataclass(frozen=True)
class Question:
    """A request to the clients of a cohort, the same for each.

    Args:
        purpose: Purpose of the phase; each client answers once for each (run, round, purpose), and
            each answer is charged by itself.
        number: The round, from 1 on.
        cohort: The clients, ascending.
        model: (d,) float32. Initial parameters.
        codec: The form of their answers.
        event: Gives what one answer costs; None for a report to the researcher of a simulation,
            which is no part of the protocol: nothing is charged, a device refuses it.
        arrays, settings: What they need beside the model.
        weights: How much each counts.
        kind: Flower's type of message: "train", "evaluate" or "query".
        alone: Whether each client gets a message of its own, which then does not depend on how
            many nodes there are. After a crash the same message goes out again, and its ledger
            answers with what it stored.
        sent: ``model`` as it travels, where it is at hand; else it is made of ``model``.
    """

    purpose: str
    number: int
    cohort: Sequence[int]
    model: NDArray[np.float32]
    codec: Codec
    event: Callable[[], Event] | None
    arrays: Mapping[str, NDArray] = field(default_factory=dict)
    settings: Mapping[str, int] = field(default_factory=dict)
    weights: cohorts.Weights = cohorts.ALIKE
    kind: str = "query"
    alone: bool = False
    sent: Array | None = None

    def content(self, clients: Sequence[int]) -> RecordDict:
        """The message to a node for its ``clients``.

        A record ``model`` with the array ``model`` and all others, and a record ``task`` with the
        settings, ``round``, ``clients`` and, unless it is "train", ``purpose``.
        ``murmur.round.task.parse_tasks`` reads it.
        """
        task: dict[str, Any] = {**self.settings, "round": self.number, "clients": list(clients)}
        if self.purpose != "train":  # which is what clients do unless told otherwise
            task["purpose"] = self.purpose
        return RecordDict({"model": self._record, "task": ConfigRecord(task)})

    @cached_property
    def _record(self) -> ArrayRecord:
        """The record that all nodes are sent: a model is made into bytes once."""
        model = self.sent or Array(self.model)
        others = {name: Array(values) for name, values in self.arrays.items()}
        return ArrayRecord({"model": model, **others})

    def task(self, client: int) -> Task:
        """Returns the task as ``client`` reads it, for canaries in the server's own process."""
        known = self.model, self.arrays, self.settings, self.purpose
        return Task(self.number, client, *known)


@dataclass
class Outcome:
    """The outcome of the phase of round ``number``.

    A phase fills it in from ``ask`` to ``take``; the strategy puts it in the round's row, and what
    a checkpoint must know of a round that is over is ``facts``.

    Attributes:
        asked: The cohort by node. ``unavailable``: how many of it no node could be asked for.
        answered: The clients in the total, ascending.
        failed, accused: Who did not contribute, and why; who was proven to have lied in a secure
            sum.
        possibly_released: Clients whose data may have been released: they have answered, or their
            node failed in a way that does not exclude it. Each takes this phase's event into its
            account.
        sum_sizes: Number of clients in each sum that the server has seen, or would have with
            secure sums.
        accepted: Whether enough have answered for the total to be used.
        bytes_down, bytes_up: What was sent and accepted, had each client a node of its own.
        total: The sum (shape); or each client's row (answered, *shape), in the order of
            ``answered``.
        weight: Sum of the weights in the total.
    """

    number: int
    asked: dict[int, list[int]] = field(default_factory=dict)
    unavailable: int = 0
    answered: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    accused: dict[int, str] = field(default_factory=dict)
    possibly_released: list[int] = field(default_factory=list)
    sum_sizes: list[int] = field(default_factory=list)
    accepted: bool = False
    bytes_down: int = 0
    bytes_up: int = 0
    total: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    weight: int = 0

    @property
    def clients(self) -> list[int]:
        """All that were asked, by node."""
        return [client for clients in self.asked.values() for client in clients]

    @property
    def cohort_size(self) -> int:
        """How many clients the phase was meant for."""
        return len(self.clients) + self.unavailable

    def fail(self, clients: Iterable[int], reason: str) -> None:
        """None of ``clients`` contributes; what was said of one of them before is replaced."""
        self.failed.update(dict.fromkeys(clients, reason))

    def add(self, other: Outcome) -> None:
        """Take another phase of the same round into this one's row: failures and bytes."""
        self.failed.update(other.failed)
        self.bytes_down += other.bytes_down
        self.bytes_up += other.bytes_up

    def facts(self) -> dict[str, Any]:
        """Returns the facts of a finished training that a checkpoint keeps for the row, as JSON."""
        return {name: getattr(self, attribute) for name, attribute in _FACTS.items()}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Outcome:
        """The inverse of ``facts``, which may come from a file."""
        values = {attribute: facts[name] for name, attribute in _FACTS.items()}
        for name in ("failed", "accused"):
            values[name] = {int(client): why for client, why in facts[name].items()}
        return cls(**values)
