"""The process's heap, and arrays seen as tensors without a copy."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# The largest value that mallopt's int takes, then the largest that older versions of glibc accept.
_THRESHOLDS = (2**31 - 1, 2**25)


def keep_heap() -> bool:
    """Tell glibc to keep freed memory in the process; return whether it agreed.

    By default glibc serves every large block with a fresh ``mmap`` and hands freed memory at the
    heap's end back to the kernel. A training step frees and allocates its activations each time,
    so it would fault in and zero every page of them again, which can cost as much as the
    arithmetic of a small model. The price is that the process's resident size does not fall below
    its peak.

    Call it at process start: it concerns the whole process and later allocations only. Where the
    C library has no ``mallopt`` (macOS, Windows, musl) it does nothing and returns False.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    # Both options are set whatever becomes of the first; mallopt returns 1 for an accepted value.
    accepted = [
        any(mallopt(option, threshold) == 1 for threshold in _THRESHOLDS)
        for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD)
    ]
    return all(accepted)


class _Readable:
    """Presents an array to NumPy as writable, keeping it alive."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def as_tensor(array: NDArray[Any]) -> Tensor:
    """A tensor over the memory of ``array``, without a copy. Only ever read it.

    ``torch.from_numpy`` warns of every read-only array, such as a data set mapped into memory,
    since PyTorch has no read-only tensors; here that is what we want.
    """
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Readable(array)))
