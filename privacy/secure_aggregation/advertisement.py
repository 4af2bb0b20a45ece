"""A client's message in phase ADVERTISE: four public keys and their signature."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from privacy.secure_aggregation.identity import (
    IDENTITY_BYTES,
    SIGNATURE_BYTES,
    is_signed,
    public_identity,
    sign,
)
from privacy.secure_aggregation.keys import POINT_BYTES, point
from privacy.secure_aggregation.terms import SecureSumError, Terms

_SIZES = (IDENTITY_BYTES, POINT_BYTES, POINT_BYTES, POINT_BYTES, SIGNATURE_BYTES)
ADVERTISED_BYTES = sum(_SIZES)


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
        signature = sign(identity, *_about(terms, client), channel, mask, seed)
        return b"".join((public_identity(identity), channel, mask, seed, signature))

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
        about = _about(terms, client)
        if not is_signed(found.identity, found.signature, *about, *found.keys[1:]):
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


def _about(terms: Terms, client: int) -> tuple[bytes, bytes, int]:
    return terms.digest(), b"advertisement", client
