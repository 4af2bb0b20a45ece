"""What clients send each other through the server, and how several messages become one.

Between two clients everything is AES-256-GCM under a key that HKDF derives for one sender, one
receiver and one phase of one sum; the terms of the sum (run, round, cohort, threshold, …) are
part of the key, and all of it is repeated as associated data. A message that was altered,
replayed from another round, phase or pair, or sent on to somebody else does not open.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from enum import StrEnum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from privacy.secure_aggregation.keys import derive
from privacy.secure_aggregation.terms import SecureSumError, Terms

_NONCE = 12
OVERHEAD = _NONCE + 16  # nonce and tag


class Phase(StrEnum):
    """The five phases of a sum, in order."""

    ADVERTISE = "advertise"  # public keys
    SHARE = "share"  # encrypted shares of the two secrets
    MASK = "mask"  # the masked vector
    CONFIRM = "confirm"  # agreement on who survived
    REVEAL = "reveal"  # the shares that remove the masks


def seal(
    secret: bytes,
    terms: Terms,
    phase: Phase,
    sender: int,
    receiver: int,
    plaintext: bytes,
    about: bytes = b"",
) -> bytes:
    """``plaintext`` for ``receiver`` only; ``about`` is authenticated and not sent.

    ``secret``: what X25519 gave the two.
    """
    key, bound = _bind(secret, terms, phase, sender, receiver)
    nonce = os.urandom(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, plaintext, bound + about)


def open_sealed(
    secret: bytes,
    terms: Terms,
    phase: Phase,
    sender: int,
    receiver: int,
    message: bytes,
    about: bytes = b"",
) -> bytes:
    """The plaintext of ``message``; SecureSumError if it is not exactly what ``sender`` sealed."""
    key, bound = _bind(secret, terms, phase, sender, receiver)
    try:
        return AESGCM(key).decrypt(message[:_NONCE], message[_NONCE:], bound + about)
    except (InvalidTag, ValueError) as error:
        raise SecureSumError(
            f"the {phase} message from client {sender} to {receiver} was altered, replayed or "
            "meant for somebody else"
        ) from error


def _bind(
    secret: bytes, terms: Terms, phase: Phase, sender: int, receiver: int
) -> tuple[bytes, bytes]:
    name = phase.encode()
    key = derive(secret, terms.digest(), b"message", name, sender, receiver)
    return key, terms.digest() + struct.pack(">QQ", sender, receiver) + name


def join(items: Mapping[int, bytes]) -> bytes:
    """Equally long messages by client id as one string of bytes."""
    sizes = {len(message) for message in items.values()}
    if len(sizes) > 1:
        raise ValueError("messages of different lengths")
    ids = sorted(items)
    head = struct.pack(">II", len(ids), sizes.pop() if sizes else 0)
    return head + struct.pack(f">{len(ids)}Q", *ids) + b"".join(items[i] for i in ids)


def part(joined: bytes, size: int) -> dict[int, bytes]:
    """The inverse of ``join`` for messages of ``size`` bytes; SecureSumError for anything else."""
    if len(joined) < 8:
        raise SecureSumError("a list of messages is cut short")
    count, found = struct.unpack_from(">II", joined)
    if (count and found != size) or len(joined) != 8 + count * (8 + found):
        raise SecureSumError(f"a list of messages is damaged: {size} bytes each were expected")
    ids = struct.unpack_from(f">{count}Q", joined, 8)
    if list(ids) != sorted(set(ids)):
        raise SecureSumError("a list of messages names a client twice, or is out of order")
    body = 8 + 8 * count
    return {i: joined[body + k * size : body + (k + 1) * size] for k, i in enumerate(ids)}


def join_ids(ids: Iterable[int]) -> bytes:
    """Client ids as one string of bytes, in increasing order."""
    return join(dict.fromkeys(ids, b""))


def part_ids(joined: bytes) -> tuple[int, ...]:
    """The inverse of ``join_ids``."""
    return tuple(part(joined, 0))
