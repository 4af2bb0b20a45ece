"""One thread of linear algebra: results do not depend on the number of cores."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import RLock

from threadpoolctl import ThreadpoolController

# Packages that bring threads of their own.
_THREADED = ("numpy", "scipy.linalg", "sklearn", "torch")
# The number of BLAS's threads belongs to the process. Of two blocks at a time, the first to end
# would give the other its threads back.
_LIMIT = RLock()


@contextmanager
def one_thread() -> Iterator[None]:
    """While it lasts, what is loaded of BLAS and OpenMP uses one thread; others wait to enter."""
    with _LIMIT:
        loaded = tuple(name in sys.modules for name in _THREADED)
        with _libraries(loaded).limit(limits=1):
            yield


@lru_cache
def _libraries(loaded: tuple[bool, ...]) -> ThreadpoolController:
    """Looked for anew when a package has come: it takes milliseconds, as much as a small model."""
    return ThreadpoolController()
