"""What a process may use of its machine: the heap, threads, a compiler, numbers of half the size.

Light to import: PyTorch is loaded only by ``has_bfloat16``, which asks it.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from threading import RLock
from types import ModuleType

from threadpoolctl import ThreadpoolController

KERNELS = "murmur.backends"
"""Entry points of packages that train by hand; everything runs without one, slower.

``sequences`` trains plain sequences of layers, ``dpfl_bnn`` binary networks, and ``clipping`` sums
DP-SGD's gradients (packages/murmur-kernels).
"""
MIN_LARGE_PARAMETERS = 2**22
"""Parameters of a model from which on memory counts for more than the time to make buffers anew."""

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# The largest value that mallopt's int takes, then the largest that older versions of glibc accept.
_THRESHOLDS = (2**31 - 1, 2**25)
_MIN_LARGE_BLOCK_BYTES = 2**22  # bytes
# Packages that bring threads of their own.
_THREADED = ("numpy", "scipy.linalg", "sklearn", "torch")
# The number of BLAS's threads belongs to the process. Of two blocks at a time, the first to end
# would give the other its threads back.
_LIMIT = RLock()
# By PyTorch's names: AVX-512 and AMX on x86, the same of Arm.
_BFLOAT16_UNITS = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")


_state = {"ours": False}


def take_over() -> None:
    """State that this process is Murmur's own: what it cannot take back may be set from now on.

    The `murmur` command and its workers do so, before PyTorch has its first tensor. Inside
    somebody's program nobody does.
    """
    _state["ours"] = True
    # Tensors of 2 MiB and more then lie in pages of that size, where Linux has them. A model of 10⁷
    # parameters is otherwise found anew in pages of 4 KiB, for each gradient and each copy of it.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def is_ours() -> bool:
    """Tells whether this process is Murmur's own, and not somebody's program."""
    return _state["ours"]


def tune_heap(parameters: int) -> None:
    """Set the allocator for a model of so many ``parameters``, if the process is Murmur's own."""
    if not is_ours():
        return
    if parameters < MIN_LARGE_PARAMETERS:
        keep_heap()
    else:
        return_large_blocks()


@contextmanager
def usual_settings() -> Iterator[None]:
    """PyTorch's and NumPy's settings of the process as they are by default, and then as before.

    A program may have others, and a run leaves one thread behind in the thread that it ran in.
    """
    import numpy as np
    import torch

    threads = torch.get_num_threads()
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.enable_grad(), np.errstate(all="warn", under="ignore"):
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)


def keep_heap() -> bool:
    """Tell glibc to keep freed memory in the process.

    By default glibc serves every large block with a fresh ``mmap`` and hands freed memory at the
    heap's end back to the kernel. A training step frees and allocates its activations each time, so
    it would fault in and zero every page of them again, which can cost as much as the arithmetic of
    a small model. The price is that the process's resident size does not fall below its peak, and
    vectors of a large model leave holes of their size in the heap.

    It concerns the whole process and later allocations only.

    Returns:
        Whether it agreed; where the C library has no ``mallopt`` (macOS, Windows, musl) nothing is
        done, and this is False.
    """
    # Both options are set whatever becomes of the first.
    accepted = [
        any(_accepts(option, threshold) for threshold in _THRESHOLDS)
        for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD)
    ]
    return all(accepted)


def return_large_blocks() -> bool:
    """Tell glibc to hand freed blocks of 4 MiB and more back to the kernel, one by one.

    For a process with a model of ``MIN_LARGE_PARAMETERS`` parameters or more.
    """
    accepted = [
        _accepts(option, _MIN_LARGE_BLOCK_BYTES)
        for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD)
    ]
    return all(accepted)


def _accepts(option: int, value: int) -> bool:
    """Set an option of glibc's allocator; whether that is one and takes it."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    return bool(mallopt(option, value) == 1)


@contextmanager
def one_thread() -> Iterator[None]:
    """While it lasts, BLAS and OpenMP use one thread, so that results do not depend on the cores.

    It concerns the libraries that are loaded on entry. A second thread waits to enter.
    """
    with _LIMIT:
        loaded = tuple(name in sys.modules for name in _THREADED)
        with _libraries(loaded).limit(limits=1):
            yield


@lru_cache
def _libraries(loaded: tuple[bool, ...]) -> ThreadpoolController:
    """Looked for anew when a package has come: it takes milliseconds, as much as a small model."""
    return ThreadpoolController()


@lru_cache
def kernels(name: str) -> ModuleType | None:
    """Returns the installed kernels of the entry point ``name``, or None.

    Args:
        name: one of those that ``KERNELS`` describes.
    """
    for point in entry_points(group=KERNELS, name=name):
        module: ModuleType = point.load()
        return module
    return None


@lru_cache
def has_kernels() -> bool:
    """Tells whether a package of hand-written kernels is installed; loads nothing."""
    return bool(entry_points(group=KERNELS))


def has_compiler() -> bool:
    """Tells whether kernels are installed, and llvmlite, which compiles some of them."""
    return has_kernels() and find_spec("llvmlite") is not None


def has_encoder(package: str) -> bool:
    """True if ``package``, which holds an encoder of texts, and its readers are installed."""
    return all(find_spec(name) is not None for name in (package, "transformers", "tokenizers"))


def has_bfloat16() -> bool:
    """True if this processor multiplies in bfloat16; where it does not, it would be slower."""
    import torch

    found = torch.cpu.get_capabilities()
    return any(found.get(unit) for unit in _BFLOAT16_UNITS)
