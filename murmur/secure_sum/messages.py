"""What clients send each other through the server, and how several messages become one.

Between two clients shares travel under AES-256-GCM, with a key that HKDF derives for one sender
and one receiver of one sum (``identity.about_boxes``). A message that was altered, replayed from
another sum or pair, or sent on to somebody else does not open.
"""

import os
import struct
from collections.abc import Mapping, Sequence
from enum import StrEnum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from murmur.secure_sum.terms import SecureSumError, join_ids, list_size, part_ids

_NONCE = 12
OVERHEAD = _NONCE + 16  # nonce and tag


class Phase(StrEnum):
    """The phases of a sum, in order; clients pay in MASK, and what one can spoil fails before."""

    ADVERTISE = "advertise"  # public keys
    SHARE = "share"  # encrypted shares of the two secrets
    CHECK = "check"  # whose shares have come
    MASK = "mask"  # the masked vector
    CONFIRM = "confirm"  # agreement on who survived
    REVEAL = "reveal"  # the shares that remove the masks


def seal(key: bytes, plaintext: bytes) -> bytes:
    """``plaintext`` under ``key``, which is one sender's, receiver's and sum's.

    A random nonce, the ciphertext and its tag: ``OVERHEAD`` bytes more than ``plaintext``. A key
    seals one message.
    """
    nonce = os.urandom(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, plaintext, None)


def open_sealed(key: bytes, message: bytes) -> bytes:
    """The plaintext of ``message``; SecureSumError if it is not exactly what was sealed."""
    try:
        return AESGCM(key).decrypt(message[:_NONCE], message[_NONCE:], None)
    except (InvalidTag, ValueError) as error:
        raise SecureSumError("shares were altered, replayed or meant for somebody else") from error


def join(items: Mapping[int, bytes], among: Sequence[int]) -> bytes:
    """Equally long messages by client as one string of bytes.

    ``among``: who could be in it, which both ends know: a bit for each says who is. ValueError for
    messages of different lengths, or of clients that cannot be in it.
    """
    if len(set(map(len, items.values()))) > 1:
        raise ValueError("messages of different lengths cannot be joined")
    there = join_ids(items, among)
    return there + b"".join([items[client] for client in among if client in items])


def part(joined: bytes, size: int, among: Sequence[int]) -> dict[int, bytes]:
    """The inverse of ``join`` for messages of ``size`` bytes; SecureSumError for anything else."""
    head = list_size(among)
    ids = part_ids(joined[:head], among)
    if len(joined) != head + size * len(ids):
        raise SecureSumError(f"a list of messages is damaged: {size} bytes each were expected")
    messages = struct.unpack_from(f"{size}s" * len(ids), joined, head)
    return dict(zip(ids, messages, strict=True))
