"""Masks: AES-256-CTR keystream read as integers modulo 2^b, and packing at b bits each.

Sums are kept in the narrowest unsigned type that holds b bits: its own wrap-around is a multiple
of 2^b, so the modulus is applied once, when packing. Vectors are gone through in blocks: nothing of
their size is made but the result.
"""

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from murmur.common import BLOCK, blocks
from murmur.secure_sum.terms import SecureSumError

Words = NDArray[np.unsignedinteger]
_LOG2 = {np.uint8: 8, np.uint16: 16, np.uint32: 32, np.uint64: 64}


def word(bits: int) -> np.dtype:
    """The narrowest unsigned type of at least ``bits`` bits (1..64)."""
    return np.dtype(next(kind for kind, width in _LOG2.items() if width >= bits))


def add_mask(total: Words, key: bytes, sign: Literal[1, -1] = 1) -> None:
    """Add a mask to ``total`` (n,) in place, or take it off where ``sign`` is -1.

    ``key``: 256 bits that are used for nothing else. The mask is little-endian words of the
    keystream of AES-256-CTR from counter 0, of the type of ``total``.
    """
    kind = total.dtype.newbyteorder("<")
    zeros = memoryview(bytes(min(len(total), BLOCK) * kind.itemsize))
    stream = Cipher(AES(key), CTR(bytes(16))).encryptor()
    for block in blocks(len(total)):
        own = total[block]
        words = np.frombuffer(stream.update(zeros[: own.nbytes]), kind)
        if sign > 0:
            own += words
        else:
            own -= words


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
    spare = 64 - bits
    integers = words.astype(np.int64)
    integers <<= spare
    if signed:
        integers >>= spare
    else:
        unsigned = integers.view(np.uint64)
        unsigned >>= np.uint64(spare)
    return integers


def packed_size(length: int, bits: int) -> int:
    """Bytes of ``length`` integers of ``bits`` bits."""
    return (length * bits + 7) // 8


def pack(words: Words, bits: int) -> bytes:
    """Words (n,) modulo 2^bits at ``bits`` bits each, the most significant bit first.

    ``packed_size`` bytes; what a word has above the modulus is dropped.
    """
    layout = _Layout(bits)
    packed = np.empty(packed_size(len(words), bits), np.uint8)
    for block in blocks(len(words)):
        packed[layout.bytes_of(block)] = layout.pack(words[block])
    return packed.tobytes()


def unpack(packed: bytes | NDArray[np.uint8], length: int, bits: int) -> Words:
    """The inverse of ``pack``; SecureSumError for anything that ``pack`` cannot have made."""
    words = np.zeros(length, word(bits))
    add_packed(words, packed, bits)
    return words


def add_packed(total: Words, packed: bytes | NDArray[np.uint8], bits: int) -> None:
    """Add the words that ``pack`` has packed to ``total`` (n,), in place.

    SecureSumError for anything that ``pack`` cannot have made; nothing is added then.
    """
    length = len(total)
    if len(packed) != packed_size(length, bits):
        raise SecureSumError(
            f"a masked vector has {len(packed)} bytes; {length} integers of {bits} bits have "
            f"{packed_size(length, bits)}"
        )
    layout = _Layout(bits)
    raw = np.frombuffer(packed, np.uint8)
    for block in blocks(length):
        own = total[block]
        own += layout.unpack(raw[layout.bytes_of(block)], len(own))


class _Layout:
    """How words of ``bits`` bits lie in big-endian longs of 64.

    The pattern repeats after ``words`` of them, which fill ``longs``. So the same word of every
    pattern is shifted by the same amount, and all of a block's are at once.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.words = 64 // math.gcd(bits, 64)
        self.longs = self.words * bits // 64
        self._mask = np.uint64((1 << bits) - 1)

    def bytes_of(self, block: slice) -> slice:
        """Where the words of ``block`` lie; it begins with a pattern."""
        return slice(block.start * self.bits // 8, packed_size(block.stop, self.bits))

    def pack(self, words: Words) -> NDArray[np.uint8]:
        """The bytes of a block of words."""
        if self.bits == 8 * words.itemsize:
            return words.astype(words.dtype.newbyteorder(">")).view(np.uint8)
        count = -(-len(words) // self.words)
        padded = np.zeros((count, self.words), np.uint64)
        padded.reshape(-1)[: len(words)] = words
        columns = np.ascontiguousarray(padded.T)
        columns &= self._mask
        longs = np.zeros((self.longs, count), np.uint64)
        for column, (long, left) in zip(columns, self._places(), strict=True):
            if left >= 0:
                longs[long] |= column << np.uint64(left)
            else:
                longs[long] |= column >> np.uint64(-left)
                longs[long + 1] |= column << np.uint64(64 + left)
        return (
            longs.T.astype(">u8").reshape(-1).view(np.uint8)[: packed_size(len(words), self.bits)]
        )

    def unpack(self, packed: NDArray[np.uint8], length: int) -> Words:
        """The inverse of ``pack``, of ``length`` words."""
        kind = word(self.bits)
        if self.bits == 8 * kind.itemsize:
            return packed.view(kind.newbyteorder(">")).astype(kind)
        count = -(-length // self.words)
        padded = np.zeros(count * self.longs * 8, np.uint8)
        padded[: len(packed)] = packed
        longs = padded.view(">u8").reshape(count, self.longs).T.astype(np.uint64)
        words = np.empty((count, self.words), kind)
        for place, (long, left) in enumerate(self._places()):
            if left >= 0:
                column = longs[long] >> np.uint64(left)
            else:
                column = longs[long] << np.uint64(-left)
                column |= longs[long + 1] >> np.uint64(64 + left)
            words[:, place] = column & self._mask
        return words.reshape(-1)[:length]

    def _places(self) -> Iterator[tuple[int, int]]:
        """Of each word of a pattern: the long in which it begins, and by how much it lies left.

        Where that is negative, so many of its bits lie in the next long.
        """
        for place in range(self.words):
            long, begin = divmod(place * self.bits, 64)
            yield long, 64 - self.bits - begin
