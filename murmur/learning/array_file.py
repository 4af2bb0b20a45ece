"""Arrays in files: with a checksum, for their owner alone.

``to_bytes`` and ``from_bytes`` have a form that notices damage, and ``replace_file`` writes it so
that a kill at any instant leaves the old file or the new one. The format is safetensors; what
belongs to the arrays and a checksum over both are its metadata.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from murmur.common import sync_folder


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


_KEY = "facts"  # the one key of the metadata: with several, their order would be arbitrary


class DamagedError(ValueError):
    """The file is not what was written."""


def to_bytes(arrays: Mapping[str, NDArray], facts: Mapping[str, Any]) -> bytes:
    """Arrays and facts with their checksum; the same content, the same bytes.

    Args:
        arrays: by name.
        facts: whatever JSON can hold.
    """
    plain = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    text = json.dumps(facts, sort_keys=True)
    checksum = hashlib.sha256(save(plain) + text.encode()).hexdigest()
    return save(plain, metadata={_KEY: json.dumps([checksum, text])})


def from_bytes(content: bytes) -> tuple[dict[str, NDArray], dict[str, Any]]:
    """The inverse of ``to_bytes``.

    Raises:
        DamagedError: a single bit is different.
    """
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        facts = json.loads(json.loads(header["__metadata__"][_KEY])[1])
        arrays = load(content)
        if to_bytes(arrays, facts) == content:
            return arrays, facts
    except (SafetensorError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        pass
    raise DamagedError("the checksum does not fit: the file was damaged or edited")


def replace_file(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` as a whole, on disk when this returns; the folder must exist.

    The file can be read by its owner only. A kill at any instant leaves the old one or the new one.

    Raises:
        OSError: it cannot be written; the old one is still there.
    """
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)  # a kill may have left one that others can read
    with open(draft, "wb", opener=private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_folder(path.parent)
