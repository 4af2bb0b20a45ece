"""The server in one secure sum: forwards, adds up masked vectors, removes the masks of the sum.

It trusts no reply: one that no honest client could have sent counts as a dropout, with its
reason in ``dropped``. It holds one running total; a vector without its mask never exists here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from privacy.secure_aggregation import masks, shares
from privacy.secure_aggregation.client import (
    ADVERTISED_BYTES,
    KEY,
    PUBLIC_BYTES,
    REVEALED_BYTES,
    SEALED_SHARES_BYTES,
    SEED,
    commitment,
    mask_key,
    self_mask_key,
)
from privacy.secure_aggregation.keys import KEY_BYTES, public_key
from privacy.secure_aggregation.messages import OVERHEAD, Phase, join, join_ids, part
from privacy.secure_aggregation.terms import SecureSumError, Terms


class SecureServer:
    """One sum, phase by phase; each method takes the clients' replies and returns what to send on.

    A client that is missing from a phase's replies has dropped out. Every method raises
    SecureSumError when too few clients are left for the sum ever to be revealed.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.dropped: dict[int, str] = {}
        self.sharers: set[int] = set()  # whose secrets others hold shares of
        self.survivors: tuple[int, ...] = ()  # whose vectors are in the sum
        self._advertised: dict[int, bytes] = {}
        self._masked: set[int] = set()
        self._total = np.zeros(terms.length, masks.word(terms.bits))

    def keys(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """After ADVERTISE: its neighbours' public keys for each client."""
        for client, advertised in replies.items():
            if len(advertised) == ADVERTISED_BYTES and client in self.terms.clients:
                self._advertised[client] = advertised
            else:
                self.dropped[client] = "its public keys are malformed"
        self._require(len(self._advertised), Phase.ADVERTISE)
        return {
            client: join(
                {
                    v: self._advertised[v][:PUBLIC_BYTES]
                    for v in self.terms.neighbours_of(client)
                    if v in self._advertised
                }
            )
            for client in self._advertised
        }

    def shares(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """After SHARE: what its neighbours sealed for each client."""
        sealed: dict[int, dict[int, bytes]] = {}
        for client, boxes in self._parted(replies, SEALED_SHARES_BYTES, self._advertised):
            wanted = set(self.terms.neighbours_of(client)) & self._advertised.keys()
            if boxes.keys() == wanted:
                sealed[client] = boxes
            else:
                self.dropped[client] = "it did not send shares to all of its neighbours"
        self.sharers = set(sealed)
        self._require(len(sealed), Phase.SHARE)
        return {
            client: join({v: sealed[v][client] for v in self._among(client, self.sharers)})
            for client in sorted(sealed)
        }

    def add(self, client: int, packed: bytes) -> None:
        """During MASK: add one client's masked vector to the total."""
        if client not in self.sharers or client in self._masked:
            raise SecureSumError(f"client {client} was not asked for a vector, or sent two")
        self._total += masks.unpack(packed, self.terms.length, self.terms.bits)
        self._masked.add(client)

    @property
    def masked(self) -> tuple[list[int], NDArray]:
        """Whose vectors are in the total, and the total, masked: what ``take_up`` needs."""
        return sorted(self._masked), self._total

    def take_up(self, clients: Iterable[int], total: NDArray) -> None:
        """Go on after MASK where an interrupted server was, with its ``masked``."""
        self._masked, self._total = set(clients), total.copy()

    def survivors_list(self) -> bytes:
        """After MASK: the list of survivors, to be confirmed by each of them."""
        self.survivors = tuple(sorted(self._masked))
        self._require(len(self.survivors), Phase.MASK)
        self._require_holders(set(self.survivors), Phase.MASK)
        return join_ids(self.survivors)

    def confirmations(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """After CONFIRM: the words of its neighbours for each client that gave its own."""
        words: dict[int, dict[int, bytes]] = {}
        for client, boxes in self._parted(replies, OVERHEAD, self.survivors):
            if boxes.keys() == set(self._among(client, set(self.survivors))):
                words[client] = boxes
            else:
                self.dropped[client] = "it did not confirm the survivors to all of its neighbours"
        self._require_holders(words.keys(), Phase.CONFIRM)
        return {
            client: join({v: words[v][client] for v in self._among(client, words.keys())})
            for client in words
        }

    def total(self, replies: Mapping[int, bytes], signed: bool = False) -> NDArray[np.int64]:
        """After REVEAL: the exact sum (length,) of the survivors' vectors modulo 2^bits.

        In [0, 2^bits), or in two's complement where ``signed``.
        """
        held: dict[int, dict[int, bytes]] = {client: {} for client in self.sharers}
        for holder, revealed in self._parted(replies, REVEALED_BYTES, self.survivors):
            expected = {holder, *self._among(holder, self.sharers)}
            if revealed.keys() != expected or any(
                share[:1] != (SEED if owner in self.survivors else KEY)
                for owner, share in revealed.items()
            ):
                self.dropped[holder] = "it did not reveal the shares that were asked for"
                continue
            for owner, share in revealed.items():
                index = self.terms.holders_of(owner).index(holder)
                held[owner][index] = share[1:]
        for owner in self.sharers:
            if self._needs_removal(owner):
                self._remove(owner, held[owner])
        return masks.from_words(self._total, self.terms.bits, signed)

    # Helpers --------------------------------------------------------------------------------

    def _remove(self, owner: int, held: Mapping[int, bytes]) -> None:
        terms = self.terms
        if len(held) < terms.threshold:
            raise SecureSumError(
                f"aborted in phase {Phase.REVEAL}: {len(held)} holders revealed shares of client "
                f"{owner}'s secrets, {terms.threshold} are needed"
            )
        secret = shares.combine(held, terms.threshold)
        advertised = self._advertised[owner]
        if owner in self.survivors:
            if commitment(secret, terms, owner) != advertised[PUBLIC_BYTES:]:
                raise SecureSumError(_wrong_share(owner))
            key = self_mask_key(secret, terms, owner)
            self._total -= masks.expand(key, terms.length, terms.bits)
            return
        if public_key(secret) != advertised[KEY_BYTES:PUBLIC_BYTES]:
            raise SecureSumError(_wrong_share(owner))
        for v in self._among(owner, set(self.survivors)):
            key = mask_key(secret, self._advertised[v][KEY_BYTES:PUBLIC_BYTES], terms, owner, v)
            pairwise = masks.expand(key, terms.length, terms.bits)
            if v < owner:  # v added it, owner would have subtracted it
                self._total -= pairwise
            else:
                self._total += pairwise

    def _needs_removal(self, owner: int) -> bool:
        return owner in self.survivors or bool(self._among(owner, set(self.survivors)))

    def _among(self, client: int, group: Container[int]) -> list[int]:
        return [v for v in self.terms.neighbours_of(client) if v in group]

    def _parted(
        self, replies: Mapping[int, bytes], size: int, expected: Container[int]
    ) -> Iterator[tuple[int, dict[int, bytes]]]:
        for client, reply in sorted(replies.items()):
            if client not in expected:
                continue
            try:
                yield client, part(reply, size)
            except SecureSumError as error:
                self.dropped[client] = str(error)

    def _require(self, count: int, phase: Phase) -> None:
        if count < self.terms.minimum:
            raise SecureSumError(
                f"aborted after phase {phase}: {count} of {len(self.terms.clients)} clients are "
                f"left, a sum needs {self.terms.minimum}"
            )

    def _require_holders(self, left: Container[int], phase: Phase) -> None:
        for owner in self.sharers:
            holders = sum(v in left for v in self.terms.holders_of(owner))
            if self._needs_removal(owner) and holders < self.terms.threshold:
                raise SecureSumError(
                    f"aborted after phase {phase}: {holders} clients are left that hold shares "
                    f"of client {owner}'s secrets, {self.terms.threshold} are needed"
                )


def _wrong_share(owner: int) -> str:
    return (
        f"aborted in phase {Phase.REVEAL}: somebody revealed a wrong share of client {owner}'s "
        "secrets"
    )
