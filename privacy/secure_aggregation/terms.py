"""What all parties of one secure sum must agree on, and who exchanges shares with whom."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np


class SecureSumError(Exception):
    """A party refuses to go on: what it received is not what an honest run would send."""


@dataclass(frozen=True)
class Terms:
    """One secure sum; every key, mask and message is bound to all of it.

    ``run`` and ``round`` name the sum and are never used twice. ``clients``: ids of the cohort,
    in increasing order. ``length`` integers are summed modulo 2^``bits``. ``threshold``: how many
    shares of a secret restore it. ``minimum``: the fewest clients whose sum may be revealed.
    ``neighbours``: how many others each client exchanges keys and shares with, an even number
    (SecAgg+, Bell et al. 2020); None: all (Bonawitz et al. 2017). ``colluders``: how many clients
    may side with the server without it learning more than the sum.
    """

    run: str
    round: int
    clients: tuple[int, ...]
    length: int
    bits: int
    threshold: int
    minimum: int
    neighbours: int | None = None
    colluders: int = 0

    def __post_init__(self) -> None:
        for name in ("round", "length", "bits", "threshold", "minimum", "colluders"):
            if type(getattr(self, name)) is not int:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be an integer")
        n = len(self.clients)
        if not isinstance(self.run, str) or not self.run:
            raise ValueError(f"run={self.run!r}: must be a name")
        if n < 2 or list(self.clients) != sorted(set(self.clients)):
            raise ValueError(
                f"clients: {n} ids; must be at least 2, all different and in increasing order"
            )
        if any(type(client) is not int or not 0 <= client < 2**63 for client in self.clients):
            raise ValueError("clients: ids must be integers in 0..2^63-1")
        if self.round < 0 or self.length < 1:
            raise ValueError(f"round={self.round}, length={self.length}: must be at least 0 and 1")
        if not 1 <= self.bits <= 64:
            raise ValueError(f"bits={self.bits}: must lie in 1..64")
        if self.neighbours is not None and (
            type(self.neighbours) is not int or not 2 <= self.neighbours < n or self.neighbours % 2
        ):
            raise ValueError(
                f"neighbours={self.neighbours}: must be even and lie in 2..{n - 1}, or be null "
                "for all of the cohort"
            )
        if not 0 <= self.colluders < n:
            raise ValueError(f"colluders={self.colluders}: must lie in 0..{n - 1}")
        holders = self.holders
        # Two groups of `threshold` holders that tell the server different things would give it
        # both secrets of one client; with this, any two groups share an honest holder.
        if not holders + self.colluders < 2 * self.threshold <= 2 * holders:
            raise ValueError(
                f"threshold={self.threshold}: must be above half of {holders} share holders and "
                f"{self.colluders} colluders, and at most {holders}"
            )
        if not max(2, self.colluders + 2) <= self.minimum <= n:
            raise ValueError(
                f"minimum={self.minimum}: must lie in {max(2, self.colluders + 2)}..{n}: a sum "
                "must hide an honest client among at least one other"
            )

    @property
    def holders(self) -> int:
        """How many clients hold shares of one client's secrets, itself included."""
        return len(self.clients) if self.neighbours is None else self.neighbours + 1

    def holders_of(self, client: int) -> tuple[int, ...]:
        """Who holds shares of ``client``'s secrets: itself and its neighbours, in order."""
        return _graph(self)[client]

    def neighbours_of(self, client: int) -> tuple[int, ...]:
        """With whom ``client`` exchanges keys, shares and masks."""
        return tuple(other for other in _graph(self)[client] if other != client)

    def stays_connected(self, survivors: Sequence[int]) -> bool:
        """Whether masks tie all of ``survivors`` together whichever of them are colluders.

        A ring falls apart where two of its arcs of half the neighbours have nobody left; a sum
        that falls apart can be read in parts.
        """
        if self.neighbours is None:
            return True
        half, ring = self.neighbours // 2, _ring(self)
        alive = np.isin(ring, survivors).astype(np.int64)
        arcs = sum(np.roll(alive, -step) for step in range(half))
        apart = range(half + 1, len(ring) - half)  # so that somebody is between the two
        least = min((int((arcs + np.roll(arcs, -step)).min()) for step in apart), default=len(ring))
        return least > self.colluders

    def digest(self) -> bytes:
        """SHA-256 of all of the terms."""
        return _digest(self)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-safe mapping."""
        return {**asdict(self), "clients": list(self.clients)}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Terms:
        """The inverse of ``to_dict``; ValueError for anything else."""
        try:
            return cls(**{**plain, "clients": tuple(plain["clients"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the terms of a secure sum: {error}") from error


@lru_cache(maxsize=64)
def _digest(terms: Terms) -> bytes:
    text = json.dumps(terms.to_dict(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(b"murmur secure sum, version 2\0" + text.encode()).digest()


@lru_cache(maxsize=64)
def _graph(terms: Terms) -> dict[int, tuple[int, ...]]:
    """Holders by client: all, or a ring in an order that the digest decides (a Harary graph)."""
    if terms.neighbours is None:
        return dict.fromkeys(terms.clients, terms.clients)
    ring = _ring(terms)
    n, half = len(ring), terms.neighbours // 2
    return {
        client: tuple(sorted(ring[(place + step) % n] for step in range(-half, half + 1)))
        for place, client in enumerate(ring)
    }


@lru_cache(maxsize=64)
def _ring(terms: Terms) -> tuple[int, ...]:
    """The cohort in an order that the digest decides."""
    seed = terms.digest()

    def place(client: int) -> bytes:
        return hashlib.sha256(seed + client.to_bytes(8, "big")).digest()

    return tuple(sorted(terms.clients, key=place))
