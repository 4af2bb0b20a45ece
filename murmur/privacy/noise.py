"""The noise stream: AES-256 in counter mode, keyed from the operating system, block-wise.

A statistical generator (PCG, Mersenne Twister) lets whoever has seen some noise compute the
rest of it and subtract it, so every mechanism draws from here. `NoiseGenerator.seeded` exists
for tests and reproductions only: whoever knows the seed can remove the noise, which voids the
privacy statement of a run that used it.
"""

import hashlib
import operator
import os
import threading
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from murmur.checks import this_process

_KEY_BYTES = 32
_BLOCK_BYTES = 1 << 20
_FIRST_BLOCK_BYTES = 1 << 12  # a client with two labels should not pay for a megabyte
_ZEROS = bytes(_BLOCK_BYTES)


class NoiseGenerator:
    """A stream of unpredictable bytes: the keystream of AES-256-CTR under a fresh key.

    The bytes depend on the key and on how many were drawn before, not on the sizes of the
    requests. Instances are safe to share between threads. After a fork, the child's copy takes
    a new key from the operating system, so that two workers never share noise; a seeded one
    refuses to go on. Pickling and copying are refused: a key never travels, and a stream is
    never used twice.
    """

    def __init__(self, key: bytes, *, is_seeded: bool) -> None:
        """Use ``from_os`` or ``seeded``; ``key`` is 32 bytes.

        Raises:
            ValueError: ``key`` does not have 32 bytes.
        """
        if len(key) != _KEY_BYTES:
            raise ValueError(f"key of {len(key)} bytes: must have {_KEY_BYTES}")
        self._is_seeded = is_seeded
        self._stream = _KeyStream(key)

    @classmethod
    def from_os(cls) -> "NoiseGenerator":
        """A generator keyed with 256 bits of the operating system's entropy."""
        return cls(os.urandom(_KEY_BYTES), is_seeded=False)

    @classmethod
    def seeded(cls, *parts: int | str | bytes) -> "NoiseGenerator":
        """A reproducible generator, for tests and reproductions; it voids privacy.

        The key is SHA-256 over an encoding of ``parts`` in which type and length precede each
        part, so that different parts never give the same key by running into each other.

        Raises:
            TypeError: a part is neither int, str nor bytes.
        """
        return cls(_derive_key(b"murmur.noise.seeded", parts), is_seeded=True)

    def fill(self, out: NDArray[Any]) -> None:
        """Overwrite ``out``, a writable C-contiguous array of integers, with uniform bits.

        Raises:
            ValueError: ``out`` is not C-contiguous, not writable, or not of integers.
        """
        if out.dtype.kind not in "iu":
            raise ValueError(f"out of dtype {out.dtype}: must hold integers")
        if not (out.flags.c_contiguous and out.flags.writeable):
            raise ValueError("out: must be C-contiguous and writable")
        if out.size:
            self._current_stream().read_into(out.reshape(-1).view(np.uint8).data)

    def uint8(self, n: int) -> NDArray[np.uint8]:
        """``n`` uniform integers in [0, 2⁸), shape (n,)."""
        out = np.empty(n, dtype=np.uint8)
        self.fill(out)
        return out

    def uint16(self, n: int) -> NDArray[np.uint16]:
        """``n`` uniform integers in [0, 2¹⁶), shape (n,)."""
        out = np.empty(n, dtype=np.uint16)
        self.fill(out)
        return out

    def uint32(self, n: int) -> NDArray[np.uint32]:
        """``n`` uniform integers in [0, 2³²), shape (n,)."""
        out = np.empty(n, dtype=np.uint32)
        self.fill(out)
        return out

    def uint64(self, n: int) -> NDArray[np.uint64]:
        """``n`` uniform integers in [0, 2⁶⁴), shape (n,)."""
        out = np.empty(n, dtype=np.uint64)
        self.fill(out)
        return out

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a NoiseGenerator cannot be pickled or copied: create one where it is used, with "
            "NoiseGenerator.from_os() or seeded()"
        )

    def __repr__(self) -> str:
        return f"NoiseGenerator({'seeded' if self._is_seeded else 'from_os'})"

    def _current_stream(self) -> "_KeyStream":
        stream = self._stream
        if stream.process == this_process():
            return stream
        if self._is_seeded:
            raise RuntimeError(
                "a seeded NoiseGenerator was carried across a fork and would repeat its noise: "
                "make another in the child, seeded(...) with the worker's own parts"
            )
        # Threads of the child may get here together: each then goes on with a stream of its
        # own for this request, which costs a key and repeats nothing.
        self._stream = stream = _KeyStream(os.urandom(_KEY_BYTES))
        return stream


class _KeyStream:
    """The keystream of one key in one process, buffered for small requests.

    The lock belongs to the stream: one held by another thread at the moment of a fork stays
    with the stream that the child abandons.
    """

    def __init__(self, key: bytes) -> None:
        self.process = this_process()
        self._lock = threading.Lock()
        self._cipher = Cipher(AES(key), CTR(bytes(16))).encryptor()
        self._buffer = bytearray(_FIRST_BLOCK_BYTES // 2)
        self._used = len(self._buffer)

    def read_into(self, out: memoryview) -> None:
        with self._lock:
            done = self._take_buffered(out)
            while len(out) - done >= _BLOCK_BYTES:
                self._encrypt_zeros(out[done : done + _BLOCK_BYTES])
                done += _BLOCK_BYTES
            while done < len(out):
                self._refill()
                done += self._take_buffered(out[done:])

    def _take_buffered(self, out: memoryview) -> int:
        end = min(self._used + len(out), len(self._buffer))
        count = end - self._used
        out[:count] = memoryview(self._buffer)[self._used : end]
        self._used = end
        return count

    def _refill(self) -> None:
        if len(self._buffer) < _BLOCK_BYTES:
            self._buffer = bytearray(2 * len(self._buffer))
        self._encrypt_zeros(memoryview(self._buffer))
        self._used = 0

    def _encrypt_zeros(self, out: memoryview) -> None:
        self._cipher.update_into(memoryview(_ZEROS)[: len(out)], out)


def _derive_key(domain: bytes, parts: tuple[int | str | bytes, ...]) -> bytes:
    digest = hashlib.sha256(domain)
    for part in parts:
        tag, encoded = _encode(part)
        digest.update(tag + len(encoded).to_bytes(8, "big") + encoded)
    return digest.digest()


def _encode(part: int | str | bytes) -> tuple[bytes, bytes]:
    if isinstance(part, str):
        return b"s", part.encode()
    if isinstance(part, bytes):
        return b"b", part
    try:
        return b"i", str(operator.index(part)).encode()
    except TypeError:
        kind = type(part).__name__
        raise TypeError(f"part {part!r} of type {kind}: must be int, str or bytes") from None
