"""Arrays in a file that is replaced as a whole, and that notices damage.

The format is safetensors; what belongs to the arrays and a checksum over both are its metadata. A
kill at any instant leaves the old file or the new one.
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

from murmur.learning.private_file import private

_KEY = "facts"  # the one key of the metadata: with several, their order would be arbitrary


class DamagedError(ValueError):
    """The file is not what was written."""


def to_bytes(arrays: Mapping[str, NDArray], facts: Mapping[str, Any]) -> bytes:
    """``arrays`` and ``facts`` (JSON) with their checksum; the same content, the same bytes."""
    plain = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    text = json.dumps(facts, sort_keys=True)
    checksum = hashlib.sha256(save(plain) + text.encode()).hexdigest()
    return save(plain, metadata={_KEY: json.dumps([checksum, text])})


def from_bytes(content: bytes) -> tuple[dict[str, NDArray], dict[str, Any]]:
    """The inverse of ``to_bytes``; DamagedError where a single bit is different."""
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
    """Write ``content`` to ``path``, on disk when this returns; the folder must exist.

    The file can be read by its owner only.
    """
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)  # a kill may have left one that others can read
    with open(draft, "wb", opener=private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # else a power cut may bring the old file back
    finally:
        os.close(folder)
