"""What privacy and learning both need: checks of arguments, durable files, random numbers.

Randomness: the experiment's is derived from (seed, purpose, round, client) and nothing else. A
result must not depend on scheduling, on the number of workers or on which other parts drew before;
so nothing shares a generator. Whoever needs randomness names its purpose and gets a stream of its
own. Privacy noise never comes from here: see ``murmur.privacy.noise``.

NumPy and PyTorch are imported where they are used: a ledger does without them.
"""

import fcntl
import hashlib
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from numbers import Integral, Real
from pathlib import Path
from tempfile import mkstemp
from threading import RLock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_TORCH_GENERATORS = RLock()

BLOCK = 1 << 16
"""Entries of a long vector that are worked on at a time."""

_SECRET_BYTES = 32


def counted(number: int, noun: str) -> str:
    """A number of things in words: 1 client, 2 clients."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"


def three_digits(value: float, up: bool = True) -> str:
    """A number for people, of three digits; a whole number from 1,000 on; "nan" and "inf" as such.

    Rounded up, since an ε is at most what is printed of it; what differs from three digits by less
    than a billionth is arithmetic's error. ``up`` false: down, for what is at least so much.
    """
    if not math.isfinite(value):
        return str(value)
    rounding = ROUND_FLOOR
    if up:
        rounding = ROUND_CEILING
    exact = Decimal(f"{value:.9g}")
    rounded = Context(prec=3, rounding=rounding).plus(exact)
    if abs(rounded) < 1000:
        return f"{float(rounded):.3g}"
    return f"{exact.to_integral_value(rounding):,}"


def require_positive(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` is finite and above 0."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name}={value}: must be finite and above 0")


def require_count(name: str, value: int) -> None:
    """Raise ValueError unless ``value`` is at least 1."""
    if value < 1:
        raise ValueError(f"{name}={value}: must be at least 1")


def require_probability(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` lies strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name}={value}: must lie in (0, 1)")


def require_finite(name: str, x: "NDArray[Any]") -> None:
    """Raise ValueError if ``x`` holds NaN or infinities."""
    if not is_finite(x):
        raise ValueError(f"{name}: holds NaN or infinities, which no clipping can bound")


def is_finite(x: "NDArray[Any]") -> bool:
    """Whether ``x`` holds neither NaN nor infinities."""
    import numpy as np  # a ledger, whose events are checked here, does without

    if x.size <= BLOCK:
        return bool(np.isfinite(x).all())
    flat = x.reshape(-1)
    parts = (flat[block] for block in blocks(flat.size))
    # What is not finite leaves no sum of squares finite, and that takes half the time to compute;
    # squares of finite numbers may overflow too.
    with np.errstate(over="ignore"):
        return all(np.isfinite(np.dot(part, part)) or np.isfinite(part).all() for part in parts)


def require_integer(name: str, value: object, least: int) -> None:
    """Raises ValueError unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name}={value}: must be an integer of at least {least}")


def require_number(name: str, value: object, least: float, most: float) -> None:
    """Raises ValueError unless ``value`` is a number in [``least``, ``most``]; a NaN is not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name}={value}: must be a number in [{least:g}, {most:g}]")
    if not least <= float(value) <= most:
        raise ValueError(f"{name}={value}: must lie in [{least:g}, {most:g}]")


def is_within(x: "NDArray[Any]", least: float, greatest: float) -> bool:
    """Whether all entries lie in [``least``, ``greatest``], as NaN does not."""
    flat = x.reshape(-1)
    parts = (flat[block] for block in blocks(flat.size))
    return all(least <= part.min() and part.max() <= greatest for part in parts)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else, process or thread, is in this block for the same ``folder``, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Put what was made, renamed or removed in ``folder`` on disk; else a power cut undoes it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private(path: str, flags: int) -> int:
    """An ``opener`` for ``open``: the file can be read and written by its owner only.

    One that was there and wider is narrowed.

    Args:
        path: the file.
        flags: of ``os.open``.

    Returns:
        A file descriptor.
    """
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def private_folder(path: Path) -> None:
    """Make the folder ``path``, with those above it, where they are not there.

    One that is there is left as it is: it may be shared on purpose, and the files in it are not.
    """
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)


def replace_durably(path: Path, *content: bytes | memoryview) -> None:
    """Replace ``path`` by ``content``, whole or not at all; the caller syncs the folder.

    The file can be read by its owner only. One at a time: where others may write the same file, in
    ``locked``. ``content``: in pieces that follow each other.
    """
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)  # a kill may have left one that others can read
    try:
        with open(draft, "wb", opener=private) as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:  # such as a full disk, which the half that was written fills
        draft.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def replace_file(path: Path, *content: bytes | memoryview) -> None:
    """``replace_durably``, on disk when this returns; the folder must exist.

    Raises:
        OSError: it cannot be written; the old one is still there.
    """
    replace_durably(path, *content)
    sync_folder(path.parent)


def kept_secret(path: Path) -> bytes:
    """The 32 secret bytes in the file ``path``, which is made, mode 600, if it is not there.

    Of several that make it at once, processes or threads, the first decides. One that is killed
    meanwhile leaves a draft that stops nobody. What is returned is on disk.

    Raises:
        ValueError: the file holds something else.
        OSError: it cannot be read or made.
    """
    try:
        return _secret_in(path)
    except FileNotFoundError:
        private_folder(path.parent)
    descriptor, draft = mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(os.urandom(_SECRET_BYTES).hex())
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
        sync_folder(path.parent)
    finally:
        os.unlink(draft)
    return _secret_in(path)


def _secret_in(path: Path) -> bytes:
    text = path.read_text(encoding="ascii")
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != _SECRET_BYTES:
        raise ValueError(f"{path}: must hold {_SECRET_BYTES} bytes in hexadecimal")
    return secret


def experiment_rng(
    seed: int, purpose: str, round: int = 0, client: int = 0
) -> "np.random.Generator":
    """A generator that is a pure function of its four arguments, on every platform.

    Philox-4x64, keyed by the first 128 bits of SHA-256 over the arguments. The hash makes any two
    distinct arguments independent streams; adding a purpose never changes an existing one.

    Args:
        seed: the run's seed, any integer of at least 0.
        purpose: what the randomness is for, such as ``"partition"`` or ``"local-training"``.
        round: the round it belongs to, 0 where the run has it only once.
        client: the client's id, 0 where it belongs to no client.

    Raises:
        ValueError: an argument is negative, not an integer, or the purpose is empty.
    """
    import numpy as np

    from murmur.stream_key import StreamKey

    for name, value in (("seed", seed), ("round", round), ("client", client)):
        if type(value) is int and value >= 0:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
            raise ValueError(f"{name}={value!r}: must be an integer of at least 0")
    if not purpose:
        raise ValueError(f"purpose={purpose!r}: must name what the randomness is for")
    # The purpose goes last, so that no separator inside it can imitate another argument.
    message = f"murmur/experiment/1:{seed}:{round}:{client}:{purpose}".encode()
    key = np.frombuffer(hashlib.sha256(message).digest()[:16], dtype="<u8").astype(np.uint64)
    return np.random.Generator(np.random.Philox(StreamKey(key)))  # type: ignore[arg-type]


@contextmanager
def seeded_torch(seed: int) -> Iterator[None]:
    """PyTorch's global generators as fresh from ``seed`` inside, and as they were afterwards.

    For layers that know no other generator, such as ``nn.Dropout``. The generators belong to the
    process: a second thread waits to enter.
    """
    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with _TORCH_GENERATORS, torch.random.fork_rng(devices=devices):
        # Not torch.manual_seed, which prints and keeps the call stack for every absent accelerator:
        # a third of a small client's time.
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield


def blocks(size: int) -> Iterator[slice]:
    """``size`` entries in pieces that a processor's cache holds, so that no copy of all is made."""
    for start in range(0, size, BLOCK):
        yield slice(start, min(start + BLOCK, size))


def framed(*fields: bytes) -> bytes:
    """``fields``, each preceded by its length: no two lists of fields give the same bytes.

    For what is hashed, signed or derived from several values. Fields that are only put one after
    the other, or separated by a character that they may hold, can be cut in more than one way.
    """
    return b"".join([len(field).to_bytes(8, "big") + field for field in fields])


def unframed(joined: bytes) -> list[bytes]:
    """The inverse of ``framed``; ValueError for bytes that it cannot have made."""
    fields = []
    end = 0
    while end < len(joined):
        start = end + 8
        end = start + int.from_bytes(joined[end:start], "big")
        fields.append(joined[start:end])
    if end > len(joined):
        raise ValueError("the last of these fields is cut off")
    return fields


def printable(text: object, keep: str = "") -> str:
    """``text`` from outside, with a question mark for each character that a terminal may obey.

    Control codes, and characters that turn the direction of writing; not those in ``keep``.
    """
    return "".join(c if c.isprintable() or c in keep else "?" for c in str(text))


def csv_cell(value: object) -> object:
    """``value`` for a CSV file: numbers as they are, no text that a spreadsheet computes.

    Such text is put behind an apostrophe, and so is text that begins with one: what stands behind
    the apostrophe of a cell is always the text itself.
    """
    formulas = ("=", "+", "-", "@", "\t", "\r")
    if isinstance(value, str) and value.startswith((*formulas, "'")):
        return "'" + value
    return value


_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def this_process() -> tuple[int, int]:
    """A value that no fork of this process has; forks by C code are told by their id alone.

    In a new PID namespace (a container) a child may have its parent's own process id.
    """
    return _forks, os.getpid()
