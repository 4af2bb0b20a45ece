"""Rows of each client: disjoint shards, or shards that are sampled when they are read."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from murmur.learning.data.class_counts import Rng, Rows, symmetric_dirichlet
from murmur.random import experiment_rng

NOBODY = -1  # the client of a row that stays unused


class ClientShards(Sequence[Rows]):
    """Rows of each client, one sorted array each: client i's are ``shards[i]``.

    Arrays hold them, and no object stands for a client, so that there may be a million.
    """

    @property
    @abstractmethod
    def sizes(self) -> Rows:
        """How many rows each client has, (clients,)."""

    @abstractmethod
    def restricted_to(self, rows: Rows) -> "ClientShards":
        """These shards of ``rows`` alone: their entries are places in ``rows``."""

    @abstractmethod
    def of(self, client: int) -> Rows:
        """The rows of ``client``, in 0..len − 1."""

    def __getitem__(self, client: int) -> Rows:  # type: ignore[override]
        """The rows of ``client``; IndexError where there is no such client. No slices."""
        if not 0 <= client < len(self):
            raise IndexError(f"client={client}: there are {len(self)} clients")
        return self.of(client)


@dataclass(frozen=True, eq=False)
class DisjointShards(ClientShards):
    """Shards of which no two overlap.

    Attributes:
        rows: those of client 0, then those of client 1, and so on; sorted within a client.
        ends: (clients,), where each client's end in ``rows``.
    """

    rows: Rows
    ends: Rows

    @classmethod
    def to(cls, owners: Rows, num_clients: int) -> "DisjointShards":
        """From ``owners`` (N,): which client has each row, ``NOBODY`` where none has it."""
        sizes = np.bincount(owners[owners != NOBODY], minlength=num_clients)
        ends = np.cumsum(sizes)
        unused = len(owners) - ends[-1]
        return cls(np.argsort(owners, kind="stable")[unused:], ends)

    @classmethod
    def joined(cls, shares: Sequence[Rows]) -> "DisjointShards":
        """From one sorted array for each client."""
        return cls(np.concatenate(shares), np.cumsum([len(rows) for rows in shares]))

    @property
    def sizes(self) -> Rows:
        """See ``ClientShards``."""
        return np.diff(self.ends, prepend=0)

    def restricted_to(self, rows: Rows) -> "DisjointShards":
        """See ``ClientShards``."""
        return DisjointShards(rows[self.rows], self.ends)

    def of(self, client: int) -> Rows:
        """See ``ClientShards``."""
        start = self.ends[client - 1] if client else 0
        return self.rows[start : self.ends[client]]

    def __len__(self) -> int:
        return len(self.ends)


@dataclass(frozen=True, eq=False)
class SampledShards(ClientShards):
    """Shards that are drawn whenever they are read, and kept nowhere; they overlap.

    Attributes:
        rows: all that can be drawn, class by class.
        ends: (classes,), where each class ends in ``rows``.
        clients: how many there are.
        size: rows of each; one that is drawn twice is there twice.
        alpha: concentration of the clients' mixtures of classes; None: as the data are mixed.
        seed: from which, with a client's number, its rows follow.
    """

    rows: Rows
    ends: Rows
    clients: int
    size: int
    alpha: float | None
    seed: int

    @property
    def sizes(self) -> Rows:
        """See ``ClientShards``."""
        return np.full(self.clients, self.size)

    def restricted_to(self, rows: Rows) -> "SampledShards":
        """See ``ClientShards``."""
        return replace(self, rows=rows[self.rows])

    def of(self, client: int) -> Rows:
        """See ``ClientShards``."""
        rng = experiment_rng(self.seed, "owner", client=client)
        if self.alpha is None:
            return np.sort(rng.choice(self.rows, self.size))
        available = np.diff(self.ends, prepend=0)
        present = np.flatnonzero(available)
        mixture = symmetric_dirichlet(rng, self.alpha, 1, len(present))[0]
        classes = present.repeat(rng.multinomial(self.size, mixture))
        starts = self.ends - available
        return np.sort(self.rows[starts[classes] + rng.integers(available[classes])])

    def __len__(self) -> int:
        return self.clients


def assign(labels: Rows, counts: Rows, rng: Rng) -> ClientShards:
    """Each client's sorted indices: of class c, client i gets ``counts[i, c]``, at random."""
    clients = np.arange(len(counts))
    owners = np.full(len(labels), NOBODY)
    for category in range(counts.shape[1]):
        pool = rng.permutation(np.flatnonzero(labels == category))
        holders = np.repeat(clients, counts[:, category])
        owners[pool[: len(holders)]] = holders
    return DisjointShards.to(owners, len(counts))


def assign_sizes(total: int, sizes: Rows, rng: Rng) -> ClientShards:
    """Sorted indices below ``total``, ``sizes[i]`` for client i, whatever their labels."""
    return assign(np.zeros(total, np.int64), sizes[:, None], rng)
