"""What all parties of one secure sum must agree on, and who exchanges shares with whom."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from murmur.common import framed
from murmur.secure_sum.graphs import LYING, PRIVACY_BITS, SERVERS, least_threshold


class SecureSumError(Exception):
    """A party refuses to go on: what it received is not what an honest run would send."""


_NUMBERS = (
    *("round", "length", "bits", "threshold", "minimum", "colluders"),
    *("group", "least_weight", "greatest_weight"),
)
_WORDS = ("run", "server", "purpose", "release", "keys")


@dataclass(frozen=True)
class Terms:
    """One secure sum; every key, mask and message is bound to all of it.

    ``run`` and ``round`` name the sum and are never used twice. ``clients``: ids of the cohort,
    in increasing order. ``length`` integers are summed modulo 2^``bits``. ``threshold``: how many
    shares of a secret restore it. ``minimum``: the fewest clients whose sum may be revealed.
    ``neighbours``: how many others each client exchanges keys and shares with, an even number
    (SecAgg+, Bell et al. 2020); None: all (Bonawitz et al. 2017). ``colluders``: how many clients
    may side with the server without it learning more than the sum. ``server``: whether the graph
    is meant for a server that follows the protocol or for one that lies (``graphs``).

    ``purpose`` and ``group``: what the sum is for, and which of its round. ``release``: digest of
    what each client releases (``release_digest``); ``least_weight``, ``greatest_weight``: within
    which its weight lies. ``keys``: digest of every client's id and long-term key, where these are
    known beforehand (``identity.keys_digest``); else empty.
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
    server: str = LYING
    purpose: str = "train"
    group: int = 0
    release: str = ""
    least_weight: int = 1
    greatest_weight: int = 1
    keys: str = ""

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            if type(getattr(self, name)) is not int:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be an integer")
        for name in _WORDS:
            if type(getattr(self, name)) is not str:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be a word")
        n = len(self.clients)
        if not self.run:
            raise ValueError(f"run={self.run!r}: must be a name")
        if self.server not in SERVERS:
            raise ValueError(f"server={self.server!r}: must be one of {', '.join(SERVERS)}")
        if n < 2 or list(self.clients) != sorted(set(self.clients)):
            raise ValueError(
                f"clients: {n} ids; must be at least 2, all different and in increasing order"
            )
        if any(type(client) is not int or not 0 <= client < 2**63 for client in self.clients):
            raise ValueError("clients: ids must be integers in 0..2^63-1")
        if min(self.round, self.group) < 0 or self.length < 1:
            raise ValueError(
                f"round={self.round}, group={self.group}, length={self.length}: must be at least "
                "0, 0 and 1"
            )
        if not 1 <= self.least_weight <= self.greatest_weight:
            raise ValueError(
                f"least_weight={self.least_weight}, greatest_weight={self.greatest_weight}: must "
                "be at least 1, and in this order"
            )
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
        self._require_safe_threshold()
        least = max(2, self.colluders + 2)
        if self.neighbours is None:
            least = max(least, self.threshold)  # no list of fewer is ever confirmed
        if not least <= self.minimum <= n:
            raise ValueError(
                f"minimum={self.minimum}: must lie in {least}..{n}: a sum must hide an honest "
                "client among at least one other, and of all of a cohort at least the threshold"
            )

    def _require_safe_threshold(self) -> None:
        """ValueError where a coalition that the terms reckon with could get both secrets."""
        if self.neighbours is None:
            # Two groups of `threshold` holders that tell the server different things would give
            # it both secrets of one client; with this, any two groups share an honest holder.
            least = (self.holders + self.colluders) // 2 + 1
            why = f"above half of {self.holders} share holders and {self.colluders} colluders"
        else:
            known = (len(self.clients), self.neighbours, self.colluders)
            least = least_threshold(self.server, *known, PRIVACY_BITS[self.server])
            why = f"at least {least} with {self.neighbours} neighbours and {self.server} server"
        if not least <= self.threshold <= self.holders:
            raise ValueError(
                f"threshold={self.threshold}: must be {why}, and at most {self.holders}"
            )

    @property
    def honest(self) -> int:
        """The fewest honest clients in any sum that is revealed under these terms."""
        return self.minimum - self.colluders

    @property
    def failure(self) -> float:
        """How likely, at most, the lot gave a client neighbours that do not hide it."""
        return 0.0 if self.neighbours is None else 2.0 ** -PRIVACY_BITS[self.server]

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


def context(terms: Terms, use: str, *fields: bytes | int) -> bytes:
    """What everything that is signed, sealed, derived or hashed in one sum is bound to.

    All of the terms, the ``use``, and ``fields``, each preceded by its length.
    """
    found = [i.to_bytes(8, "big") if isinstance(i, int) else i for i in fields]
    return framed(terms.digest(), use.encode(), *found)


@lru_cache(maxsize=64)
def _digest(terms: Terms) -> bytes:
    text = json.dumps(terms.to_dict(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(framed(b"murmur secure sum, version 3", text.encode())).digest()


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

    def place(client: int) -> bytes:
        return hashlib.sha256(context(terms, "place in the ring", client)).digest()

    return tuple(sorted(terms.clients, key=place))
