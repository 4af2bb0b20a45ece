"""Parses arrays from untrusted bytes.

NumPy's own reader is made for files that one trusts: it also opens archives, makes room for
whatever size a header states, and raises errors of many kinds. Here bytes are one plain array of
numbers, as long as they say, or malformed.
"""

from __future__ import annotations

import io
import math

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from learning.contribution import MalformedError

_LARGEST_HEADER = 256  # NumPy writes 128 bytes for the arrays that travel here
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def array_from_bytes(data: bytes) -> NDArray:
    """The array of booleans, integers or reals that ``numpy.save`` wrote; a copy, C-contiguous.

    Raises MalformedError for anything else, before any room is made for the values.
    """
    stream = io.BytesIO(data)
    try:
        read = _HEADERS[npy.read_magic(stream)]
        shape, fortran, dtype = read(stream, max_header_size=_LARGEST_HEADER)
    except Exception as error:  # a hostile header fails in ways that NumPy does not list
        raise MalformedError(f"not an array in NumPy's format ({type(error).__name__})") from error
    if dtype.kind not in "biuf" or not dtype.isnative or dtype.names or dtype.subdtype:
        raise MalformedError(f"an array of {str(dtype)!r:.40}: only plain numbers are read")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise MalformedError("an array with a size below 0")
    start = stream.tell()
    if len(data) - start != math.prod(shape) * dtype.itemsize:
        raise MalformedError(
            f"an array of {len(data) - start} bytes, where its header states other sizes"
        )
    values = np.frombuffer(data, dtype, offset=start)
    return values.reshape(shape, order="F" if fortran else "C").copy(order="C")
