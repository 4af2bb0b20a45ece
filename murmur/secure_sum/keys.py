"""Key agreement on P-256, HKDF-SHA256 to derive one key for one use, and what is sealed with it.

Each client has two key pairs for one sum (Bonawitz et al. 2017): ``channel`` for messages to
other clients, whose private half never leaves it, and ``mask`` for pairwise masks, whose private
half is secret-shared, so that the masks of a client that drops out can be removed. The group's
order is prime: a point that decodes has no small order. Private keys are scalars of 32 bytes,
public ones compressed points of 33.

Between two clients shares travel under AES-256-GCM, with a key that HKDF derives for one sender
and one receiver of one sum (``identity.about_boxes``). A message that was altered, replayed from
another sum or pair, or sent on to somebody else does not open.
"""

import os
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from murmur.secure_sum.terms import SecureSumError

_NONCE_BYTES = 12
OVERHEAD_BYTES = _NONCE_BYTES + 16  # nonce and tag
if TYPE_CHECKING:
    from Crypto.PublicKey.ECC import EccPoint

KEY_BYTES = 32
POINT_BYTES = 33
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256
Entropy = Callable[[int], bytes]
PrivateKey = ec.EllipticCurvePrivateKey
# How much of what follows from public bytes alone a process keeps for the next client that asks:
# in a simulation a client's key is read, and its signature checked, once for each neighbour.
MAX_CACHED_KEYS = 1 << 14
_CURVE = ec.SECP256R1()
_ECDH = ec.ECDH()
_HASH = hashes.SHA256()


def scalar(entropy: Entropy = os.urandom) -> bytes:
    """A uniform number in 1..ORDER-1, as 32 bytes: a private key, or a coefficient.

    ``entropy``: gives so many random bytes; 384 bits make the remainder's bias 2^-128.
    """
    return to_bytes(int.from_bytes(entropy(48), "big") % (ORDER - 1) + 1)


def to_bytes(number: int) -> bytes:
    """A number below ORDER as 32 bytes."""
    return number.to_bytes(KEY_BYTES, "big")


def public_key(private: bytes) -> bytes:
    """The public half, 33 bytes, of a private key; ValueError for one outside 1..ORDER-1."""
    key = private_key(private).public_key()
    return key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def private_key(private: bytes) -> PrivateKey:
    """A private key from its 32 bytes; ValueError for one outside 1..ORDER-1."""
    return ec.derive_private_key(int.from_bytes(private, "big"), _CURVE)


def agree(private: PrivateKey, public: bytes) -> bytes:
    """The 32 bytes that the holders of the two key pairs share: the x of their common point.

    SecureSumError for a public key that is not one.
    """
    return private.exchange(_ECDH, decoded(public))


def point(public: bytes) -> "EccPoint":
    """A public key as a point to calculate with; SecureSumError where it is not one.

    Its arithmetic takes a time that depends on the numbers: for what is public only.
    """
    from Crypto.PublicKey.ECC import EccPoint  # slow to load, and a client does without

    numbers = decoded(public).public_numbers()
    return EccPoint(numbers.x, numbers.y, "P-256")


def encoded(at: "EccPoint") -> bytes:
    """The inverse of ``point``; SecureSumError for the point at infinity."""
    if at.is_point_at_infinity():
        raise SecureSumError("a public key is the point at infinity")
    x, y = at.xy
    return bytes([2 + int(y) % 2]) + to_bytes(int(x))


def combination(terms: Iterable[tuple[int, "EccPoint"]]) -> "EccPoint":
    """Σ scalar · point over ``terms``, for numbers that are public: its time tells them.

    Digit by digit: the points that have the same digit are added up, and their sum is taken that
    many times (Pippenger, "On the evaluation of powers and monomials", SIAM J. Comput. 1980).
    """
    from Crypto.PublicKey.ECC import EccPoint

    chosen = list(terms)
    digit = max(1, len(chosen).bit_length() - 4)  # its bits
    nothing = partial(EccPoint, 0, 0, "P-256")  # the point at infinity; its copy() would be slow
    total = nothing()
    for place in reversed(range(0, ORDER.bit_length(), digit)):
        for _ in range(digit):
            total.double()
        alike = [nothing() for _ in range(1 << digit)]
        for number, at in chosen:
            here = number >> place & (1 << digit) - 1
            if here:
                alike[here] += at
        above = nothing()
        for each in reversed(alike[1:]):
            above += each
            total += above
    return total


def derive(secret: bytes, about: bytes, size: int = KEY_BYTES) -> bytes:
    """A key of ``size`` bytes for one use: HKDF-SHA256 of ``secret``.

    ``about`` is the use's ``context``. What is longer than a key may be parted into several.
    """
    return HKDF(_HASH, size, None, about).derive(secret)


@lru_cache(maxsize=MAX_CACHED_KEYS)
def decoded(public: bytes) -> ec.EllipticCurvePublicKey:
    """A public key of 33 bytes; SecureSumError where it is no point of the curve."""
    try:
        if len(public) != POINT_BYTES:
            raise ValueError(f"{len(public)} bytes")
        return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, public)
    except ValueError as error:
        raise SecureSumError("a public key is not a point of P-256") from error


def seal(key: bytes, plaintext: bytes) -> bytes:
    """``plaintext`` under ``key``, which is one sender's, receiver's and sum's.

    A random nonce, the ciphertext and its tag, ``OVERHEAD_BYTES`` more than ``plaintext``. A key
    seals one message.
    """
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plaintext, None)


def open_sealed(key: bytes, message: bytes) -> bytes:
    """The plaintext of ``message``; SecureSumError if it is not exactly what was sealed."""
    try:
        return AESGCM(key).decrypt(message[:_NONCE_BYTES], message[_NONCE_BYTES:], None)
    except (InvalidTag, ValueError) as error:
        raise SecureSumError("shares were altered, replayed or meant for somebody else") from error
