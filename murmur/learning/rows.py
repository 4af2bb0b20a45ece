"""Contributions that are not summed: one row for each client, side by side.

Where a server needs every client's own release (each one protected by itself), a node stacks what
its clients send, and the server stacks the nodes. The codec is the same as for sums; every row is
checked by it as a contribution of weight 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from murmur.learning.contribution import Codec, Integers, MalformedError


@dataclass
class Rows:
    """The rows of a node's, or of the server's, clients."""

    codec: Codec
    clients: list[int] = field(default_factory=list)
    _packed: list[NDArray] = field(default_factory=list)

    def add(self, client: int, packed: NDArray) -> None:
        """Take one client's packed release; MalformedError if no honest client sends it."""
        self.codec.expand(packed, 1)
        self._packed.append(packed)
        self.clients.append(client)

    def add_all(self, clients: list[int], packed: NDArray) -> None:
        """Take what a node has stacked, all of it or, if one row is malformed, nothing."""
        if packed.ndim < 1 or len(packed) != len(clients):
            raise MalformedError(f"{list(packed.shape)} for {len(clients)} clients: a row for each")
        for row in packed:
            self.codec.expand(row, 1)
        self._packed.extend(packed)
        self.clients.extend(clients)

    def packed(self) -> NDArray:
        """The rows as they travel (clients, ...), at least one."""
        return np.stack(self._packed)

    def integers(self) -> tuple[list[int], Integers]:
        """Clients in ascending order, and their rows (clients, ...)."""
        order = np.argsort(self.clients)
        rows = [self.codec.expand(self._packed[place], 1) for place in order]
        shape = (0, *self.codec.shape)
        stacked = np.stack(rows) if rows else np.zeros(shape, np.int64)
        return [self.clients[place] for place in order], stacked
