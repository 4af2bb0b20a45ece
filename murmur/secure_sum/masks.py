"""Masks: AES-256-CTR keystream read as integers modulo 2^b, and packing at b bits each.

Sums are kept in the narrowest unsigned type that holds b bits: its own wrap-around is a multiple
of 2^b, so the modulus is applied once, when packing. Vectors are gone through in blocks: nothing of
their size is made but the result.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from murmur.checks import BLOCK_ENTRIES, blocks
from murmur.secure_sum.terms import SecureSumError

Words = NDArray[np.unsignedinteger]
Sign = Literal[1, -1]
_Shift = tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]
_FROM_0 = CTR(bytes(16))
_ZEROS = memoryview(bytes(8 * BLOCK_ENTRIES))
_LOG2 = {np.uint8: 8, np.uint16: 16, np.uint32: 32, np.uint64: 64}


class Vector(Protocol):
    """Integers (n,) that are read block by block: an array, or what makes them then."""

    @property
    def dtype(self) -> np.dtype: ...  # noqa: D102
    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    def __len__(self) -> int: ...
    def __getitem__(self, block: slice, /) -> NDArray[np.integer]: ...


def word(bits: int) -> np.dtype:
    """The narrowest unsigned type of at least ``bits`` bits (1..64)."""
    return np.dtype(next(kind for kind, width in _LOG2.items() if width >= bits))


def add_mask(total: Words, key: bytes, sign: Sign = 1) -> None:
    """Add a mask to ``total`` (n,) in place, or take it off where ``sign`` is -1.

    ``key``: 256 bits that are used for nothing else. The mask is little-endian words of the
    keystream of AES-256-CTR from counter 0, of the type of ``total``.
    """
    stream = keystream(key)
    for block in blocks(len(total)):
        _add_next(total[block], stream, sign)


def keystream(key: bytes) -> CipherContext:
    """AES-256-CTR under ``key`` from counter 0: what it makes of zeros is the stream."""
    return Cipher(AES(key), _FROM_0).encryptor()


def _add_next(words: Words, stream: CipherContext, sign: Sign) -> None:
    """Add as many more words of a keystream as there are ``words``, in place."""
    mask = np.frombuffer(stream.update(_ZEROS[: words.nbytes]), words.dtype.newbyteorder("<"))
    if sign > 0:
        words += mask
    else:
        words -= mask


def to_words(values: NDArray[np.integer], bits: int) -> Words:
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


def pack(values: Vector, bits: int, masks: Sequence[tuple[bytes, Sign]] = ()) -> NDArray[np.uint8]:
    """Integers (n,) modulo 2^bits at ``bits`` bits each, the most significant bit first.

    ``masks``: keys of those that are added to them first, each with its sign (``add_mask``).
    ``packed_size`` bytes; what an integer has above the modulus is dropped.
    """
    layout = _Layout(bits)
    streams = [(keystream(key), sign) for key, sign in masks]
    packed = np.empty(packed_size(len(values), bits), np.uint8)
    for block in blocks(len(values)):
        words = to_words(values[block], bits)
        for stream, sign in streams:
            _add_next(words, stream, sign)
        packed[layout.bytes_of(block)] = layout.pack(words)
    return packed


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


@lru_cache(maxsize=64)
class _Layout:
    """How words of ``bits`` bits lie in big-endian longs of 64.

    The pattern repeats after 64 words, which fill ``bits`` longs. So the same word of every pattern
    is shifted by the same amount, and a block is a few operations on rows of patterns.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self._mask = np.uint64((1 << bits) - 1)
        self._to_longs = _shifts(bits, 64)
        self._to_words = _shifts(64, bits)

    def bytes_of(self, block: slice) -> slice:
        """Where the words of ``block`` lie; it begins with a pattern."""
        return slice(block.start * self.bits // 8, packed_size(block.stop, self.bits))

    def pack(self, words: Words) -> NDArray[np.uint8]:
        """The bytes of a block of words."""
        if self.bits == 8 * words.itemsize:
            return words.astype(words.dtype.newbyteorder(">")).view(np.uint8)
        rows = _padded(words, 64).astype(np.uint64)
        rows &= self._mask
        longs = _regrouped(rows, self._to_longs)
        packed = longs.astype(">u8").reshape(-1).view(np.uint8)
        return packed[: packed_size(len(words), self.bits)]

    def unpack(self, packed: NDArray[np.uint8], length: int) -> Words:
        """The inverse of ``pack``, of ``length`` words."""
        kind = word(self.bits)
        if self.bits == 8 * kind.itemsize:
            return packed.view(kind.newbyteorder(">")).astype(kind)
        longs = _padded(packed, 8 * self.bits).view(">u8").astype(np.uint64)
        rows = _regrouped(longs, self._to_words)
        rows &= self._mask
        return rows.astype(kind).reshape(-1)[:length]


def _padded(values: NDArray, width: int) -> NDArray:
    """``values`` (n,) as rows (rows, width), the last one filled up with zeros."""
    if len(values) % width:
        whole = np.zeros(-(-len(values) // width) * width, values.dtype)
        whole[: len(values)] = values
        values = whole
    return values.reshape(-1, width)


def _shifts(given: int, wanted: int) -> list[_Shift]:
    """How groups of ``given`` bits become groups of ``wanted`` bits: the same bits, of a pattern.

    A wanted group shares bits with a few given ones. For the first of these, then the second and so
    on: which group it is, and by how many bits it goes left and right, of each wanted group. Beyond
    the last it goes right by all of its bits, and nothing is left of it.
    """
    place = np.arange(given)  # as many as ``wanted`` given ones make
    first = place * wanted // given
    found = []
    for which in range((wanted + given - 2) // given + 1):
        left = wanted * (place + 1) - given * (first + which + 1)
        lefts, rights = (np.maximum(by, 0).astype(np.uint64) for by in (left, -left))
        found.append((np.minimum(first + which, wanted - 1), lefts, rights))
    return found


def _regrouped(rows: NDArray[np.uint64], shifts: list[_Shift]) -> NDArray[np.uint64]:
    """Rows of given groups (n, given), one for each pattern, as rows of wanted ones (n, wanted).

    Beyond all of their bits NumPy shifts numbers to 0.
    """
    total = np.zeros((len(rows), len(shifts[0][0])), np.uint64)
    for which, left, right in shifts:
        part = rows.take(which, axis=1)
        part <<= left
        part >>= right
        total |= part
    return total
