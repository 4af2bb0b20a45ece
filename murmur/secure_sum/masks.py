"""Masks: AES-256-CTR keystream read as integers modulo 2^b, and packing at b bits each.

Sums are kept in the narrowest unsigned type that holds b bits: its own wrap-around is a multiple
of 2^b, so the modulus is applied once, when packing.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from murmur.secure_sum.terms import SecureSumError

Words = NDArray[np.unsignedinteger]
_LOG2 = {np.uint8: 8, np.uint16: 16, np.uint32: 32, np.uint64: 64}


def word(bits: int) -> np.dtype:
    """The narrowest unsigned type of at least ``bits`` bits (1..64)."""
    return np.dtype(next(kind for kind, width in _LOG2.items() if width >= bits))


def expand(key: bytes, length: int, bits: int) -> Words:
    """``length`` uniform words (length,) from a 256-bit ``key`` that is used for nothing else.

    Little-endian words of the keystream of AES-256-CTR from counter 0.
    """
    kind = word(bits)
    zeros = bytes(length * kind.itemsize)
    stream = Cipher(AES(key), CTR(bytes(16))).encryptor().update(zeros)
    return np.frombuffer(stream, kind.newbyteorder("<")).astype(kind, copy=False)


def to_words(values: NDArray[np.int64], bits: int) -> Words:
    """Integers (n,) as words of ``word(bits)``, negative ones in two's complement.

    What lies above the modulus stays where a word is wider: ``pack`` drops it.
    """
    return values.astype(word(bits))


def from_words(words: Words, bits: int, signed: bool) -> NDArray[np.int64]:
    """Integers (n,), int64, of words modulo 2^bits.

    In [0, 2^bits), or in [−2^(bits−1), 2^(bits−1)) where ``signed``.
    """
    # Shift out what lies above the modulus; an arithmetic shift back restores the sign.
    spare = np.uint64(64 - bits)
    shifted = words.astype(np.uint64) << spare
    if signed:
        return shifted.view(np.int64) >> np.int64(spare)
    return (shifted >> spare).view(np.int64)


def packed_size(length: int, bits: int) -> int:
    """Bytes of ``length`` integers of ``bits`` bits."""
    return (length * bits + 7) // 8


def pack(words: Words, bits: int) -> bytes:
    """Words (n,) modulo 2^bits at ``bits`` bits each, the most significant bit first.

    ``packed_size`` bytes; what a word has above the modulus is dropped.
    """
    width = 8 * words.itemsize
    rows = words.astype(words.dtype.newbyteorder(">")).view(np.uint8).reshape(len(words), -1)
    if width == bits:
        return rows.tobytes()
    return np.packbits(np.unpackbits(rows, axis=1)[:, width - bits :]).tobytes()


def unpack(packed: bytes, length: int, bits: int) -> Words:
    """The inverse of ``pack``; SecureSumError for anything that ``pack`` cannot have made."""
    if len(packed) != packed_size(length, bits):
        raise SecureSumError(
            f"a masked vector has {len(packed)} bytes; {length} integers of {bits} bits have "
            f"{packed_size(length, bits)}"
        )
    kind = word(bits)
    raw = np.frombuffer(packed, np.uint8)
    if 8 * kind.itemsize != bits:
        wide = np.zeros((length, 8 * kind.itemsize), np.uint8)
        wide[:, wide.shape[1] - bits :] = np.unpackbits(raw, count=length * bits).reshape(-1, bits)
        raw = np.packbits(wide)
    return raw.view(kind.newbyteorder(">")).astype(kind)
