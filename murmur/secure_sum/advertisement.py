"""A client's message in phase ADVERTISE: four public keys and their signature."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from murmur.secure_sum.identity import (
    IDENTITY_BYTES,
    SIGNATURE_BYTES,
    is_signed,
    public_identity,
    sign,
)
from murmur.secure_sum.keys import POINT_BYTES, point
from murmur.secure_sum.terms import SecureSumError, Terms, context

_SIZES = (IDENTITY_BYTES, POINT_BYTES, POINT_BYTES, POINT_BYTES, SIGNATURE_BYTES)
ADVERTISED_BYTES = sum(_SIZES)
_USE = "advertisement"


@dataclass(frozen=True)
class Advertisement:
    """``identity``: of the device; ``channel``, ``mask``: see ``keys``; ``seed``: S = b_u·G."""

    identity: bytes
    channel: bytes
    mask: bytes
    seed: bytes
    signature: bytes

    @classmethod
    def sign(
        cls, identity: bytes, terms: Terms, client: int, channel: bytes, mask: bytes, seed: bytes
    ) -> bytes:
        """As it travels."""
        keys = (public_identity(identity), channel, mask, seed)
        signature = sign(identity, context(terms, _USE, client, *keys))
        return b"".join((*keys, signature))

    @classmethod
    def of(cls, sent: bytes) -> Advertisement:
        """Its parts; SecureSumError for another length."""
        if len(sent) != ADVERTISED_BYTES:
            raise SecureSumError("its public keys are malformed")
        ends = [sum(_SIZES[:count]) for count in range(len(_SIZES) + 1)]
        return cls(*(sent[a:b] for a, b in pairwise(ends)))

    @classmethod
    def read(cls, sent: bytes, terms: Terms, client: int) -> Advertisement:
        """``of``, with its signature checked: SecureSumError where it is not ``client``'s."""
        found = cls.of(sent)
        about = context(terms, _USE, client, *found.keys)
        if not is_signed(found.identity, found.signature, about):
            raise SecureSumError("its public keys are not signed by its own device's key")
        return found

    def require_valid(self) -> None:
        """SecureSumError for what is no point of the curve, and for a key that is there twice."""
        for key in self.keys[1:]:
            point(key)
        if len(set(self.keys)) < len(self.keys):
            raise SecureSumError("it advertised the same public key twice")

    @property
    def keys(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Its four public keys."""
        return self.identity, self.channel, self.mask, self.seed
