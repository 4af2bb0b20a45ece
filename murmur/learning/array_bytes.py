"""Arrays from the network: parsing and checks of what ``numpy.save`` wrote."""

import math
import re
from typing import Literal

import numpy as np
from numpy.typing import NDArray


class MalformedError(ValueError):
    """A contribution that no honest client could have sent."""


# Format version 1.0, as `numpy.save` writes it: magic, length of the header, header.
_START = re.compile(rb"\x93NUMPY\x01\x00(?P<length>..)", re.DOTALL)
_HEADER = re.compile(
    rb"\{'descr': '(?P<dtype>[<|][biuf][0-9]{1,2})', 'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>(?:[0-9]{1,18},(?: [0-9]{1,18},)*(?: [0-9]{1,18})?)?)\), \} *\n"
)
_MAX_HEADER_BYTES = 256  # NumPy writes 118 bytes for the arrays that travel here


def array_from_bytes(data: bytes) -> NDArray:
    """The array of booleans, integers or reals that ``numpy.save`` wrote.

    Args:
        data: from anybody; nothing of it is unpickled, and no room is made before its size is
            known.

    Returns:
        C-contiguous, read-only: it lies in ``data`` where that has it in this order.

    Raises:
        MalformedError: it is anything else.
    """
    start = _START.match(data)
    length = 0
    if start:
        length = int.from_bytes(start["length"], "little")
    if start is None or length > _MAX_HEADER_BYTES:
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
    return np.ascontiguousarray(values).reshape(shape)


def require_array(array: NDArray, dtype: type, shape: tuple[int, ...]) -> None:
    """MalformedError unless ``array`` has this type and shape."""
    if array.dtype != dtype or array.shape != shape:
        raise MalformedError(
            f"expected {np.dtype(dtype).name}{list(shape)}, got {array.dtype}{list(array.shape)}"
        )
