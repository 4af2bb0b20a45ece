"""What a device keeps beside its charges: what it was asked, by whom, and what it confirmed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from murmur.privacy.ledger.blocks import decode_ids, encode_ids
from murmur.privacy.ledger.entry import require_digest
from murmur.privacy.run_header import SignedHeader


@dataclass(frozen=True)
class JoinedSum:
    """A secure sum that clients of this place have joined, by its terms.

    Attributes:
        terms: digest of the sum's terms, in hex.
        minimum: the fewest clients whose sum may be revealed.
        colluders: how many of them may side with the server.
        places: of each client of this place among the sum's clients, which are in order.
    """

    terms: str
    minimum: int
    colluders: int
    places: Mapping[str, int]

    def to_plain(self) -> list[Any]:
        """For JSON: clients and places in blocks, both in the order of the places."""
        clients = sorted(self.places, key=lambda client: self.places[client])
        places = sorted(map(str, self.places.values()), key=int)
        return [self.terms, self.minimum, self.colluders, _blocks(clients), _blocks(places)]

    @classmethod
    def from_plain(cls, plain: Any) -> "JoinedSum":
        """The inverse of ``to_plain``; ValueError or TypeError for anything else."""
        terms, minimum, colluders, clients, places = plain
        numbers = map(int, _names(places))
        return cls(terms, minimum, colluders, dict(zip(_names(clients), numbers, strict=True)))


@dataclass(frozen=True)
class Asked:
    """One request's question to all clients of its phase, and the server's word for it.

    Attributes:
        question: digest of the question, in hex (``murmur.round.task.question``).
        header: the run's header, verified; None where the server has sent none that holds.
        terms: digests of the terms of the secure sums that the request is for, in hex; "" is no
            sum. Empty where the server has signed nothing.
        signatures: the server's, verified, one for each of ``terms``.
        is_binding: whether the owner has pinned the server's key: then a run has one header, and a
            header one run.
    """

    question: str
    header: SignedHeader | None = None
    terms: tuple[str, ...] = ()
    signatures: tuple[bytes, ...] = ()
    is_binding: bool = False
    sums: tuple[JoinedSum, ...] = ()

    def to_text(self) -> str:
        """The body of an entry "question": JSON with all but the header, of which the digest."""
        require_digest("question", self.question)
        plain: dict[str, Any] = {
            "question": self.question,
            "header": None if self.header is None else self.header.digest,
            "terms": self.terms,
            "signatures": [signature.hex() for signature in self.signatures],
        }
        if self.sums:
            plain["sums"] = [joined.to_plain() for joined in self.sums]
        return json.dumps(plain, separators=(",", ":"), sort_keys=True)


@dataclass(frozen=True)
class Confirmed:
    """The survivors of a secure sum as clients have confirmed them.

    Attributes:
        run, round, purpose: of the charge that the sum is for.
        terms: digest of the sum's terms, in hex.
        clients: those that have confirmed.
        survivors: the number of clients whose vectors are in the sum.
        lists: digest of both lists, whose masks may be in the sum and who survived, in hex.
    """

    run: str
    round: int
    purpose: str
    terms: str
    clients: Sequence[int]
    survivors: int
    lists: str

    def to_text(self) -> str:
        """The body of an entry "confirmed", as JSON."""
        plain = {
            "clients": list(self.clients),
            "survivors": self.survivors,
            "lists": self.lists,
        }
        return json.dumps(plain, separators=(",", ":"), sort_keys=True)


def _blocks(names: Sequence[str]) -> list[str]:
    """``names`` in their order: numbers that ascend as blocks, all others as they are."""
    encoded = encode_ids(names)
    if _names(encoded) != list(names):
        return list(names)
    return encoded


def _names(blocks: Sequence[str]) -> list[str]:
    """The inverse of ``_blocks``."""
    return [name for block in blocks for name in decode_ids(block)]
