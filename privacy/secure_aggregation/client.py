"""One client in one secure sum: five phases, each done once and in order.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017;
the neighbour graph is that of Bell et al., "Secure single-server aggregation with
(poly)logarithmic overhead", CCS 2020. Client u of cohort U, all modulo 2^b:

    y_u = x_u + PRG(b_u) + Σ_{v > u} PRG(s_uv) − Σ_{v < u} PRG(s_uv)     over its neighbours v

Symbols: x_u = ``vector``, b_u = ``seed``, s_uv = X25519 agreement of the ``mask`` key pairs.
b_u and the private ``mask`` key are Shamir-shared among the neighbours. For a client that
survived, holders reveal their share of b_u; for one that dropped out, of its mask key; never both.
Instead of the paper's signatures, which need a PKI, clients confirm the list of survivors to each
other under their pairwise keys.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from privacy.secure_aggregation import masks, shares
from privacy.secure_aggregation.keys import KEY_BYTES, Entropy, agree, derive, public_key
from privacy.secure_aggregation.messages import (
    OVERHEAD,
    Phase,
    join,
    join_ids,
    open_sealed,
    part,
    part_ids,
    seal,
)
from privacy.secure_aggregation.terms import SecureSumError, Terms

PUBLIC_BYTES = 2 * KEY_BYTES  # channel key, mask key
ADVERTISED_BYTES = PUBLIC_BYTES + KEY_BYTES  # and the commitment to the seed
SEALED_SHARES_BYTES = OVERHEAD + 2 * shares.SECRET_BYTES
REVEALED_BYTES = 1 + shares.SECRET_BYTES
SEED, KEY = b"s", b"k"  # which of a client's secrets a revealed share belongs to
_ORDER = tuple(Phase)
_Method = TypeVar("_Method", bound=Callable[..., bytes])


def mask_key(private: bytes, public: bytes, terms: Terms, one: int, other: int) -> bytes:
    """The key of the mask that two clients share, the same for both."""
    low, high = min(one, other), max(one, other)
    return derive(agree(private, public), terms.digest(), b"pairwise mask", low, high)


def self_mask_key(seed: bytes, terms: Terms, client: int) -> bytes:
    """The key of the mask that only ``client`` adds."""
    return derive(seed, terms.digest(), b"self mask", client)


def commitment(seed: bytes, terms: Terms, client: int) -> bytes:
    """What shows that a restored seed is the one that ``client`` used, and nothing else."""
    return derive(seed, terms.digest(), b"seed commitment", client)


def _once(phase: Phase) -> Callable[[_Method], _Method]:
    """A phase is answered once and in order; one that fails is this client's last."""
    place = _ORDER.index(phase)

    def decorate(method: _Method) -> _Method:
        @wraps(method)
        def guarded(self: SecureClient, *arguments: Any) -> bytes:
            self.require_due(phase)
            # A second attempt with other input would reveal more than one sum.
            self.done = len(_ORDER)
            answer = method(self, *arguments)
            self.done = place + 1
            return answer

        return cast(_Method, guarded)

    return decorate


@dataclass
class SecureClient:
    """The state of client ``me`` between two phases, of which ``done`` are behind it.

    Every method raises SecureSumError where going on would be unsafe; the client then takes no
    further part. A state whose secrets were used must never be used again: whoever stores it
    stores the new one before the answer leaves (``store.StateFile``).
    """

    terms: Terms
    me: int
    channel: bytes = field(repr=False)
    mask: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    done: int = 0
    public: dict[int, bytes] = field(default_factory=dict)  # neighbours' two public keys
    shares: dict[int, bytes] = field(default_factory=dict, repr=False)  # seed share, key share
    survivors: tuple[int, ...] = ()

    @classmethod
    def join(cls, terms: Terms, me: int, entropy: Entropy = os.urandom) -> SecureClient:
        """Take part in a new sum with fresh secrets; ``entropy`` differs in tests only."""
        if me not in terms.clients:
            raise SecureSumError(f"client {me} is not in the cohort that the server names")
        return cls(terms, me, entropy(KEY_BYTES), entropy(KEY_BYTES), entropy(KEY_BYTES))

    @_once(Phase.ADVERTISE)
    def advertise(self) -> bytes:
        """Phase 1: two public keys and the commitment to the seed."""
        committed = commitment(self.seed, self.terms, self.me)
        return public_key(self.channel) + public_key(self.mask) + committed

    @_once(Phase.SHARE)
    def share(self, message: bytes) -> bytes:
        """Phase 2: from neighbours' public keys to one sealed pair of shares for each."""
        public = self._from_neighbours(message, PUBLIC_BYTES)
        self._require_holders(len(public) + 1)
        own = {public_key(self.channel), public_key(self.mask)}
        seen = {pair[i : i + KEY_BYTES] for pair in public.values() for i in (0, KEY_BYTES)} | own
        if len(seen) != 2 * len(public) + 2:
            raise SecureSumError("the same public key was advertised twice")
        self.public = public
        holders, threshold = self.terms.holders_of(self.me), self.terms.threshold
        seeds = shares.split(self.seed, threshold, len(holders))
        keys = shares.split(self.mask, threshold, len(holders))
        pairs = {
            holder: seeds[i] + keys[i]
            for i, holder in enumerate(holders)
            if holder in public or holder == self.me
        }
        self.shares = {self.me: pairs.pop(self.me)}
        return join({v: self._seal(Phase.SHARE, v, pair) for v, pair in pairs.items()})

    @_once(Phase.MASK)
    def add_masks(self, vector: NDArray[np.int64], message: bytes) -> bytes:
        """Phase 3: from ``vector`` (length,) and the neighbours' sealed shares to y_u, packed."""
        terms = self.terms
        if vector.dtype != np.int64 or vector.shape != (terms.length,):
            raise ValueError(
                f"vector={vector.dtype}{list(vector.shape)}: must be int64[{terms.length}]"
            )
        sealed = self._from_neighbours(message, SEALED_SHARES_BYTES)
        if not sealed.keys() <= self.public.keys():
            raise SecureSumError("shares arrived from a client whose keys did not")
        self._require_holders(len(sealed) + 1)
        if terms.neighbours is None and len(sealed) + 1 < terms.minimum:
            raise SecureSumError(self._too_few(len(sealed) + 1))
        for v, box in sealed.items():
            self.shares[v] = self._open(Phase.SHARE, v, box)
        own = self_mask_key(self.seed, terms, self.me)
        total = masks.to_words(vector, terms.bits) + masks.expand(own, terms.length, terms.bits)
        for v in sealed:
            key = mask_key(self.mask, self.public[v][KEY_BYTES:], terms, self.me, v)
            pairwise = masks.expand(key, terms.length, terms.bits)
            if v > self.me:
                total += pairwise
            else:
                total -= pairwise
        return masks.pack(total, terms.bits)

    @_once(Phase.CONFIRM)
    def confirm(self, message: bytes) -> bytes:
        """Phase 4: from the list of survivors to this client's word on it for each neighbour."""
        survivors = part_ids(message)
        alive = self._alive(survivors)
        if self.me not in survivors or not set(survivors) <= set(self.terms.clients):
            raise SecureSumError("the list of survivors is not one of this cohort's")
        if len(survivors) < self.terms.minimum:
            raise SecureSumError(self._too_few(len(survivors)))
        if not set(alive) <= self.shares.keys():
            raise SecureSumError("a client is said to have survived that had sent no shares")
        self._require_holders(len(alive) + 1)
        self.survivors = survivors
        return join({v: self._seal(Phase.CONFIRM, v, b"", message) for v in alive})

    @_once(Phase.REVEAL)
    def reveal(self, message: bytes) -> bytes:
        """Phase 5: from the neighbours' words to one share for each client whose mask must go."""
        words = self._from_neighbours(message, OVERHEAD)
        if not words.keys() <= set(self._alive(self.survivors)):
            raise SecureSumError("a client confirms that did not survive")
        about = join_ids(self.survivors)
        for v, box in words.items():
            self._open(Phase.CONFIRM, v, box, about)
        self._require_holders(len(words) + 1)
        half = shares.SECRET_BYTES
        return join(
            {
                v: SEED + pair[:half] if v in self.survivors else KEY + pair[half:]
                for v, pair in self.shares.items()
            }
        )

    def require_due(self, phase: Phase) -> None:
        """SecureSumError unless ``phase`` is the next one."""
        if self.done != _ORDER.index(phase):
            due = "nothing more" if self.is_finished else f"phase {_ORDER[self.done]}"
            raise SecureSumError(
                f"phase {phase} was asked for, {due} is due: each is answered once"
            )

    def answer(self, phase: Phase, message: bytes) -> bytes:
        """The answer in any phase that needs no data of the client's."""
        if phase is Phase.ADVERTISE:
            return self.advertise()
        if phase is Phase.SHARE:
            return self.share(message)
        if phase is Phase.CONFIRM:
            return self.confirm(message)
        if phase is Phase.REVEAL:
            return self.reveal(message)
        raise ValueError(f"phase={phase}: needs the vector; call add_masks")

    @property
    def is_finished(self) -> bool:
        """Whether it takes no further part: all phases are behind it, or one of them failed."""
        return self.done == len(_ORDER)

    def to_bytes(self) -> bytes:
        """The whole state, secrets included, for the client's own disk."""
        return json.dumps({f.name: _plain(getattr(self, f.name)) for f in fields(self)}).encode()

    @classmethod
    def from_bytes(cls, stored: bytes) -> SecureClient:
        """The inverse of ``to_bytes``."""
        plain = json.loads(stored)
        return cls(
            terms=Terms.from_dict(plain["terms"]),
            me=plain["me"],
            channel=bytes.fromhex(plain["channel"]),
            mask=bytes.fromhex(plain["mask"]),
            seed=bytes.fromhex(plain["seed"]),
            done=plain["done"],
            public={int(k): bytes.fromhex(v) for k, v in plain["public"].items()},
            shares={int(k): bytes.fromhex(v) for k, v in plain["shares"].items()},
            survivors=tuple(plain["survivors"]),
        )

    # Helpers --------------------------------------------------------------------------------

    def _from_neighbours(self, message: bytes, size: int) -> dict[int, bytes]:
        items = part(message, size)
        if not items.keys() <= set(self.terms.neighbours_of(self.me)):
            raise SecureSumError("a message came from a client that is no neighbour")
        return items

    def _alive(self, survivors: Sequence[int]) -> list[int]:
        return [v for v in self.terms.neighbours_of(self.me) if v in set(survivors)]

    def _require_holders(self, count: int) -> None:
        if count < self.terms.threshold:
            raise SecureSumError(
                f"{count} clients hold shares of this one's secrets; {self.terms.threshold} "
                "are needed to remove its masks"
            )

    def _too_few(self, count: int) -> str:
        return f"{count} clients survive; the sum of fewer than {self.terms.minimum} stays masked"

    def _seal(self, phase: Phase, to: int, plaintext: bytes, about: bytes = b"") -> bytes:
        secret = agree(self.channel, self.public[to][:KEY_BYTES])
        return seal(secret, self.terms, phase, self.me, to, plaintext, about)

    def _open(self, phase: Phase, sender: int, box: bytes, about: bytes = b"") -> bytes:
        secret = agree(self.channel, self.public[sender][:KEY_BYTES])
        return open_sealed(secret, self.terms, phase, sender, self.me, box, about)


def _plain(value: Any) -> Any:
    if isinstance(value, Terms):
        return value.to_dict()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value
