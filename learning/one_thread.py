"""One thread of linear algebra: results do not depend on the number of cores."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController

# Packages that bring threads of their own.
_THREADED = ("numpy", "scipy.linalg", "sklearn", "torch")


def one_thread() -> AbstractContextManager[Any]:
    """While it lasts, what is loaded of BLAS and OpenMP uses one thread."""
    return _libraries(tuple(name in sys.modules for name in _THREADED)).limit(limits=1)


@lru_cache
def _libraries(loaded: tuple[bool, ...]) -> ThreadpoolController:
    """Looked for anew when a package has come: it takes milliseconds, as much as a small model."""
    return ThreadpoolController()
