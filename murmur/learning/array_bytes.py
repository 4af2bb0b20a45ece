"""Parses arrays from untrusted bytes.

NumPy's own reader is made for files that one trusts: it also opens archives, makes room for
whatever size a header states, and raises errors of many kinds. It takes a header for a Python
expression, too, whose parser fails now and then where threads use it at once (Python 3.11,
python/cpython#106905). Here bytes are one plain array of numbers, as long as they say, or
malformed.
"""

from __future__ import annotations

import math
import re
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from murmur.learning.codec import MalformedError

# Format version 1.0, as `numpy.save` writes it: magic, length of the header, header.
_START = re.compile(rb"\x93NUMPY\x01\x00(?P<length>..)", re.DOTALL)
_HEADER = re.compile(
    rb"\{'descr': '(?P<dtype>[<|][biuf][0-9]{1,2})', 'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>(?:[0-9]{1,18},(?: [0-9]{1,18},)*(?: [0-9]{1,18})?)?)\), \} *\n"
)
_LARGEST_HEADER = 256  # NumPy writes 118 bytes for the arrays that travel here


def array_from_bytes(data: bytes) -> NDArray:
    """The array of booleans, integers or reals that ``numpy.save`` wrote; a copy, C-contiguous.

    Raises MalformedError for anything else, before any room is made for the values.
    """
    start = _START.match(data)
    length = int.from_bytes(start["length"], "little") if start else 0
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
