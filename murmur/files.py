"""Durable files, locks and secrets, readable by their owner only."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkstemp

_SECRET_BYTES = 32


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


def owner_only(path: str, flags: int) -> int:
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


def owner_only_folder(path: Path) -> None:
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
        with open(draft, "wb", opener=owner_only) as file:
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
        owner_only_folder(path.parent)
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
