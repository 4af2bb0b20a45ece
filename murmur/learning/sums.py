"""Running sums and rows of packed contributions, at a node or at the server."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from murmur.learning.array_bytes import MalformedError
from murmur.learning.codec import Codec, Integers


@dataclass
class SumAccumulator:
    """The running sum of a node's or the server's contributions, in place.

    Attributes:
        codec: of the contributions.
        weight: of all clients together.
        clients: who is in it.
        alone: the packed release of the only client; None where there is none, or another part.
    """

    codec: Codec
    weight: int = 0
    clients: list[int] = field(default_factory=list)
    alone: NDArray | None = None

    @cached_property
    def total(self) -> Integers:
        """The integers, of the codec's shape.

        Made when they are first needed: a server waits for its clients without them, and the
        release of a single client travels as it is.
        """
        total = np.zeros(self.codec.shape, np.int64)
        if self.alone is not None:
            self.codec.add_to(total, self.alone, self.weight)
        return total

    def add(self, client: int, packed: NDArray, weight: int = 1) -> None:
        """Add one client's packed release.

        Raises:
            MalformedError: no honest client could have sent it; nothing is added then.
        """
        self._require_weight(weight, 1)
        if self.clients:
            self.codec.add_to(self.total, packed, weight)
            self.alone = None
        else:
            self.codec.check(packed)
            self.alone = packed
        self.weight += weight
        self.clients.append(client)

    def add_total(self, clients: list[int], total: NDArray, weight: int) -> None:
        """Add what another node has already summed.

        Args:
            clients: who is in it.
            total: integers of the codec's shape. Where they come first and may be written, the sum
                goes on in their memory.
            weight: of these clients together, at least 1 each.

        Raises:
            MalformedError: no honest node could have sent it; nothing is added then.
        """
        self._require_weight(weight, len(clients))
        checked = self.codec.check_total(total, weight)
        if not self.clients and checked.flags.writeable:
            self.total = checked
        else:
            self.total += checked
        self.alone = None
        self.weight += weight
        self.clients.extend(clients)

    def _require_weight(self, weight: int, least: int) -> None:
        if not least <= weight <= self.codec.capacity - self.weight:
            raise MalformedError(
                f"weight={weight}: must be at least {least}, and all weights together at most "
                f"{self.codec.capacity}"
            )


@dataclass
class RowStore:
    """The rows of the server's clients, for aggregations that are not sums.

    Attributes:
        codec: of each row.
        weight: of all clients together.
        clients: whose they are, in their order.
        packed: the rows as they travel.
    """

    codec: Codec
    weight: int = 0
    clients: list[int] = field(default_factory=list)
    packed: list[NDArray] = field(default_factory=list)

    def add_all(self, clients: list[int], packed: NDArray, weight: int) -> None:
        """Take what a node has stacked, all of it or nothing.

        Args:
            clients: whose rows they are.
            packed: (clients, ...), a row for each.
            weight: of these clients together.

        Raises:
            MalformedError: a row is malformed, or there are more or fewer of them.
        """
        if packed.ndim < 1 or len(packed) != len(clients):
            raise MalformedError(f"{list(packed.shape)} for {len(clients)} clients: a row for each")
        for row in packed:
            self.codec.check(row)
        self.packed.extend(packed)
        self.weight += weight
        self.clients.extend(clients)

    @property
    def total(self) -> Integers:
        """Integers (clients, ...), in the order of their clients' ids, ascending."""
        stacked = np.zeros((len(self.clients), *self.codec.shape), np.int64)
        for row, place in zip(stacked, np.argsort(self.clients), strict=True):
            row[...] = self.codec.expand(self.packed[place], 1)
        return stacked
