"""Evidence that another client sent an invalid message: the secret that the two share.

With it anybody who has the message can decrypt it. That it is the right secret is shown
without the private key: a proof that two discrete logarithms are equal (Chaum and Pedersen,
CRYPTO 1992), made non-interactive by hashing (Fiat and Shamir). It opens the two messages between
these two clients and nothing else, and one of the two has lied.
"""

from __future__ import annotations

import hashlib

from Crypto.PublicKey.ECC import EccPoint

from privacy.secure_aggregation.keys import (
    KEY_BYTES,
    ORDER,
    POINT_BYTES,
    combination,
    encoded,
    framed,
    point,
    public_key,
    scalar,
    to_bytes,
)
from privacy.secure_aggregation.terms import SecureSumError

EVIDENCE_BYTES = POINT_BYTES + 2 * KEY_BYTES
_BASE = point(public_key(to_bytes(1)))


def disclose(private: bytes, other: bytes, about: bytes) -> bytes:
    """What ``private`` and the public key ``other`` agree on, and the proof; ``about``: the sum."""
    secret, nonce = int.from_bytes(private, "big"), int.from_bytes(scalar(), "big")
    base = point(other)
    shared = encoded(base * secret)
    ends = encoded(_BASE * nonce), encoded(base * nonce)
    challenge = _challenge(about, public_key(private), other, shared, *ends)
    return shared + to_bytes(challenge) + to_bytes((nonce + challenge * secret) % ORDER)


def disclosed(public: bytes, other: bytes, evidence: bytes, about: bytes) -> bytes:
    """The 32 bytes that ``keys.agree`` gives the two; SecureSumError where the proof fails."""
    if len(evidence) != EVIDENCE_BYTES:
        raise SecureSumError(f"evidence has {len(evidence)} bytes, not {EVIDENCE_BYTES}")
    shared = evidence[:POINT_BYTES]
    challenge, response = (
        int.from_bytes(evidence[start : start + KEY_BYTES], "big")
        for start in (POINT_BYTES, POINT_BYTES + KEY_BYTES)
    )

    def end(base: EccPoint, raised: bytes) -> bytes:
        return encoded(combination([(response, base), (ORDER - challenge, point(raised))]))

    if not 0 <= challenge < ORDER or not 0 <= response < ORDER:
        raise SecureSumError("evidence is out of range")
    ends = end(_BASE, public), end(point(other), shared)
    if challenge != _challenge(about, public, other, shared, *ends):
        raise SecureSumError("evidence does not prove what it says")
    return shared[1:]


def _challenge(about: bytes, *points: bytes) -> int:
    digest = hashlib.sha256(framed(b"equal logarithms", about, *points)).digest()
    return int.from_bytes(digest, "big") % ORDER
