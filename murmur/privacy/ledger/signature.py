"""The device's signature: Ed25519, which anybody can check who has the public key."""

from __future__ import annotations

from functools import cached_property

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


class Signer:
    """Signs and checks texts under one device's key; ``purpose`` keeps kinds of text apart."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls) -> Signer:
        """One with a new key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes) -> Signer:
        """The inverse of ``to_pem``; ValueError for anything else."""
        key = load_pem_private_key(pem, None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("not an Ed25519 key")
        return cls(key)

    def to_pem(self) -> bytes:
        """The private key as PKCS #8, not encrypted."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @cached_property
    def public_key(self) -> str:
        """The 32 bytes of the public key, in hex."""
        return self._key.public_key().public_bytes_raw().hex()

    def sign(self, purpose: str, text: str) -> bytes:
        """The signature of ``text``, 64 bytes."""
        return self._key.sign(_message(purpose, text))

    def holds(self, purpose: str, text: str, signature: bytes | None) -> bool:
        """Whether ``signature`` was made for ``text`` under this key."""
        try:
            self._key.public_key().verify(signature or b"", _message(purpose, text))
        except (InvalidSignature, TypeError):
            return False
        return True


def _message(purpose: str, text: str) -> bytes:
    return f"murmur ledger {purpose}\0{text}".encode()
