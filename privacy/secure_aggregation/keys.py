"""Key agreement: X25519, and HKDF-SHA256 to derive one key for one use.

Each client has two key pairs for one sum (Bonawitz et al. 2017): ``channel`` for messages to
other clients, whose private half never leaves it, and ``mask`` for pairwise masks, whose private
half is secret-shared, so that the masks of a client that drops out can be removed.
"""

from __future__ import annotations

from collections.abc import Callable

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from privacy.secure_aggregation.terms import SecureSumError

KEY_BYTES = 32
Entropy = Callable[[int], bytes]


def public_key(private: bytes) -> bytes:
    """The public half (32 bytes) of an X25519 private key (32 bytes)."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes) -> bytes:
    """The 32 bytes that the holders of the two key pairs share.

    SecureSumError for a public key that is not one, or of low order, with which the result would
    not depend on the private key.
    """
    try:
        other = X25519PublicKey.from_public_bytes(public)
        return X25519PrivateKey.from_private_bytes(private).exchange(other)
    except ValueError as error:
        raise SecureSumError("a public key is not a valid X25519 key") from error


def derive(secret: bytes, salt: bytes, *info: bytes | int) -> bytes:
    """A 32-byte key for one use: HKDF-SHA256 of ``secret``; ``info`` names the use.

    Each part of ``info`` is preceded by its length, so that no two lists of parts collide.
    """
    parts = [i.to_bytes(8, "big") if isinstance(i, int) else i for i in info]
    encoded = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return HKDF(hashes.SHA256(), KEY_BYTES, salt, encoded).derive(secret)
