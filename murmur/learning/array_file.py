"""Arrays as bytes and in files: untrusted bytes, checksummed files, files for their owner alone.

``array_from_bytes`` parses arrays from the network. ``to_bytes`` and ``from_bytes`` have a form
that notices damage, and ``replace_file`` writes it so that a kill at any instant leaves the old
file or the new one. The format is safetensors; what belongs to the arrays and a checksum over both
are its metadata.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from murmur.learning.codec import MalformedError


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


# Format version 1.0, as `numpy.save` writes it: magic, length of the header, header.
_START = re.compile(rb"\x93NUMPY\x01\x00(?P<length>..)", re.DOTALL)
_HEADER = re.compile(
    rb"\{'descr': '(?P<dtype>[<|][biuf][0-9]{1,2})', 'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>(?:[0-9]{1,18},(?: [0-9]{1,18},)*(?: [0-9]{1,18})?)?)\), \} *\n"
)
_LARGEST_HEADER = 256  # NumPy writes 118 bytes for the arrays that travel here


def array_from_bytes(data: bytes) -> NDArray:
    """The array of booleans, integers or reals that ``numpy.save`` wrote.

    Args:
        data: from anybody; nothing of it is unpickled, and no room is made before its size is
            known.

    Returns:
        A copy, C-contiguous.

    Raises:
        MalformedError: it is anything else.
    """
    start = _START.match(data)
    length = 0
    if start:
        length = int.from_bytes(start["length"], "little")
    if start is None or length > _LARGEST_HEADER:
        raise MalformedError("not an array in NumPy's format")
    header = _HEADER.fullmatch(data, start.end(), start.end() + length)
    if header is None:
        raise MalformedError("not an array of plain numbers in NumPy's format")
    try:
        dtype = np.dtype(header["dtype"].decode())
    except TypeError as error:
        raise MalformedError(f"an array of {header['dtype'].decode()}: no such numbers") from error
    shape = tuple(int(size) for size in header["shape"].split(b",") if size)
    if len(data) - header.end() != math.prod(shape) * dtype.itemsize:
        raise MalformedError(
            f"an array of {len(data) - header.end()} bytes, where its header states other sizes"
        )
    order: Literal["F", "C"] = "F" if header["fortran"] == b"True" else "C"
    try:
        values = np.frombuffer(data, dtype, offset=header.end()).reshape(shape, order=order)
    except ValueError as error:  # nothing along one axis, and too much along another
        raise MalformedError(f"an array of shape {shape}") from error
    return values.copy(order="C")


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
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # else a power cut may bring the old file back
    finally:
        os.close(folder)
