"""Ed25519 signatures: by keys of one's own, and under public keys that somebody has named.

Every text is signed for a role ("ledger", "server") and a purpose ("commit", "header"), so that a
signature made for one kind of text never passes for another. Bytes are signed as they are.
"""

import re
from functools import cached_property, lru_cache
from typing import ClassVar, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

_KEY = re.compile(r"[0-9a-f]{64}")
_P = 2**255 - 19
_Y_OF_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
# y of the points of order 1, 2, 4 and 8: under such a key anybody can sign. Two of them also have
# an encoding that is not reduced modulo p.
_SMALL_ORDER = {0, 1, _P - 1, _P, _P + 1, _Y_OF_ORDER_8, _P - _Y_OF_ORDER_8}


class Signer:
    """Signs and checks texts under one Ed25519 key.

    Attributes:
        role: whose key it is, for a subclass to name.
    """

    role: ClassVar[str]

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls) -> Self:
        """A signer with a new key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes) -> Self:
        """The inverse of ``to_pem``; ValueError or TypeError for anything else."""
        key = load_pem_private_key(pem, None)
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("not an Ed25519 key")
        return cls(key)

    def to_pem(self) -> bytes:
        """The private key as PKCS #8, not encrypted: the file that holds it is its owner's only."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @cached_property
    def public_key(self) -> str:
        """The 32 bytes of the public key, in hex."""
        return self._key.public_key().public_bytes_raw().hex()

    def sign(self, purpose: str, text: str | bytes) -> bytes:
        """The signature of ``text``, 64 bytes."""
        return self._key.sign(_message(self.role, purpose, text))

    def sign_plainly(self, text: bytes) -> bytes:
        """The signature of ``text`` as it is, for a format of others that names its own purpose."""
        return self._key.sign(text)

    def is_valid(self, purpose: str, text: str | bytes, signature: bytes | None) -> bool:
        """True if ``signature`` was made for ``text`` under this key.

        False for None and for anything that is no signature; never raises.
        """
        return is_signed(self.role, self.public_key, purpose, text, signature)


def is_signed_plainly(key: str, text: bytes, signature: bytes) -> bool:
    """True if ``signature`` is of ``text`` as it is by the public ``key``, in hex; never raises."""
    try:
        _public_key(require_public_key(key)).verify(signature, text)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def is_signed(
    role: str, key: str, purpose: str, text: str | bytes, signature: bytes | None
) -> bool:
    """True if ``signature`` was made for ``text`` by ``role``'s public ``key``, in hex.

    False for what is no key or no signature; never raises.
    """
    try:
        _public_key(key).verify(signature or b"", _message(role, purpose, text))
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def require_public_key(key: object) -> str:
    """``key`` if it is a public key in 64 small hex digits under which only its owner can sign.

    ValueError for anything else, also for the few keys of small order.
    """
    if not (isinstance(key, str) and _KEY.fullmatch(key)):
        raise ValueError(f"{key!r:.80}: must be a public key of 64 small hex digits")
    y = int.from_bytes(bytes.fromhex(key), "little") % 2**255
    if y in _SMALL_ORDER:
        raise ValueError(f"{key!r}: is a key of small order, under which anybody can sign")
    return key


@lru_cache(maxsize=64)
def _public_key(key: str) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))


def _message(role: str, purpose: str, text: str | bytes) -> bytes:
    if isinstance(text, str):
        text = text.encode()
    return f"murmur {role} {purpose}\0".encode() + text
