"""What a node does with its clients' releases: sum them, or have each client mask its own."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from murmur.learning.codec import Codec, Rows, Sum
from murmur.privacy.events import Event


class Planned(NamedTuple):
    """A release that is about to be made: its ``event``, and all that a sum's terms say of it."""

    algorithm: str
    purpose: str
    codec: Codec
    event: Event
    weight: int
    seeded: bool = False  # whether its noise follows from the run's seed


class Collector(Protocol):
    """Takes the releases of one message's clients and gives the node's contribution."""

    def event(self, client: int, planned: Planned) -> Event:
        """What ``planned.event`` is once it leaves this way; raises if it may not."""

    def add(self, client: int, codec: Codec, packed: NDArray, weight: int) -> None:
        """Take one client's packed release; raises if it cannot."""

    @property
    def clients(self) -> list[int]:
        """Whose releases are in it, in order."""

    def report(self) -> dict[str, Any]:
        """What the server must know to read the contribution."""

    def arrays(self) -> ArrayRecord:
        """The contribution of at least one client."""


class PlainSum:
    """The node's sum; the release of a single client stays in its compact form."""

    def __init__(self) -> None:
        self._sum: Sum | None = None
        self._packed: NDArray | None = None

    def event(self, client: int, planned: Planned) -> Event:
        """The server may be told of a single client: nothing is hidden."""
        return planned.event

    def add(self, client: int, codec: Codec, packed: NDArray, weight: int) -> None:
        """Add to the sum."""
        if self._sum is None:
            self._sum = Sum(codec)
        self._sum.add(client, packed, weight)
        self._packed = packed

    @property
    def clients(self) -> list[int]:
        """Whose releases are in the sum."""
        return [] if self._sum is None else self._sum.clients

    def report(self) -> dict[str, Any]:
        """The sum's weight, and whether it is one client's packed release."""
        weight = 0 if self._sum is None else self._sum.weight
        return {"weight": weight, "packed": len(self.clients) == 1}

    def arrays(self) -> ArrayRecord:
        """The sum."""
        if self._sum is None or self._packed is None:
            raise ValueError("nothing was added")
        alone = len(self._sum.clients) == 1
        return ArrayRecord({"sum": Array(self._packed if alone else self._sum.total)})


class SideBySide:
    """The releases of one message's clients as rows; nothing is summed."""

    def __init__(self) -> None:
        self._rows: Rows | None = None

    def event(self, client: int, planned: Planned) -> Event:
        """The server sees every client's row: nothing is hidden."""
        return planned.event

    def add(self, client: int, codec: Codec, packed: NDArray, weight: int) -> None:
        """One more row."""
        if self._rows is None:
            self._rows = Rows(codec)
        self._rows.add(client, packed)

    @property
    def clients(self) -> list[int]:
        """Whose rows these are, in order."""
        return [] if self._rows is None else self._rows.clients

    def report(self) -> dict[str, Any]:
        """Nothing: a row has no weight."""
        return {}

    def arrays(self) -> ArrayRecord:
        """The rows."""
        if self._rows is None:
            raise ValueError("nothing was added")
        return ArrayRecord({"rows": Array(self._rows.packed())})
