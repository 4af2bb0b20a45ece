"""What clients send each other through the server, and how several messages become one.

Between two clients shares travel under AES-256-GCM, with a key that HKDF derives for one sender
and one receiver of one sum (``bindings.box_key``). A message that was altered, replayed from
another sum or pair, or sent on to somebody else does not open.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from murmur.secure_sum.terms import SecureSumError

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
    """``plaintext`` under ``key``: ``bindings.box_key`` of one sender, receiver and sum."""
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

    ``among``: who could be in it, which both ends know: a bit for each says who is.
    """
    chosen = [client for client in among if client in items]
    if len(chosen) != len(items) or len({len(message) for message in items.values()}) > 1:
        raise ValueError("messages of different lengths, or of clients that cannot be in it")
    there = np.packbits(np.isin(among, chosen)).tobytes()
    return there + b"".join(items[client] for client in chosen)


def part(joined: bytes, size: int, among: Sequence[int]) -> dict[int, bytes]:
    """The inverse of ``join`` for messages of ``size`` bytes; SecureSumError for anything else."""
    head = (len(among) + 7) // 8
    there = np.unpackbits(np.frombuffer(joined[:head], np.uint8))
    if len(there) != 8 * head or there[len(among) :].any():
        raise SecureSumError("a list of messages is damaged: it does not say from whom they are")
    ids = [client for client, is_there in zip(among, there, strict=False) if is_there]
    if len(joined) != head + size * len(ids):
        raise SecureSumError(f"a list of messages is damaged: {size} bytes each were expected")
    return {client: joined[head + k * size : head + (k + 1) * size] for k, client in enumerate(ids)}


def join_ids(ids: Iterable[int], among: Sequence[int]) -> bytes:
    """Some of the clients ``among`` as one string of bytes."""
    return join(dict.fromkeys(ids, b""), among)


def part_ids(joined: bytes, among: Sequence[int]) -> tuple[int, ...]:
    """The inverse of ``join_ids``."""
    return tuple(part(joined, 0, among))
