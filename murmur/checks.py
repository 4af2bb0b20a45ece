"""Checks of arguments, of arrays and of the process.

NumPy is imported where it is used: a ledger does without.
"""

import math
import os
from collections.abc import Iterator
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


BLOCK_ENTRIES = 1 << 16
"""Entries of a long vector that are worked on at a time."""


def require_positive(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` is finite and above 0."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name}={value}: must be finite and above 0")


def require_count(name: str, value: int) -> None:
    """Raise ValueError unless ``value`` is at least 1."""
    if value < 1:
        raise ValueError(f"{name}={value}: must be at least 1")


def require_probability(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` lies strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name}={value}: must lie in (0, 1)")


def require_finite(name: str, x: "NDArray[Any]") -> None:
    """Raise ValueError if ``x`` holds NaN or infinities."""
    if not is_finite(x):
        raise ValueError(f"{name}: holds NaN or infinities, which no clipping can bound")


def is_finite(x: "NDArray[Any]") -> bool:
    """True if ``x`` holds neither NaN nor infinities."""
    import numpy as np  # a ledger, whose events are checked here, does without

    if x.size <= BLOCK_ENTRIES:
        return bool(np.isfinite(x).all())
    flat = x.reshape(-1)
    parts = (flat[block] for block in blocks(flat.size))
    # What is not finite leaves no sum of squares finite, and that takes half the time to compute;
    # squares of finite numbers may overflow too.
    with np.errstate(over="ignore"):
        return all(np.isfinite(np.dot(part, part)) or np.isfinite(part).all() for part in parts)


def require_integer(name: str, value: object, least: int) -> None:
    """Raises ValueError unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name}={value}: must be an integer of at least {least}")


def require_number(name: str, value: object, least: float, most: float) -> None:
    """Raises ValueError unless ``value`` is a number in [``least``, ``most``]; a NaN is not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name}={value}: must be a number in [{least:g}, {most:g}]")
    if not least <= float(value) <= most:
        raise ValueError(f"{name}={value}: must lie in [{least:g}, {most:g}]")


def is_within(x: "NDArray[Any]", least: float, greatest: float) -> bool:
    """True if all entries lie in [``least``, ``greatest``]; NaN does not."""
    flat = x.reshape(-1)
    parts = (flat[block] for block in blocks(flat.size))
    return all(least <= part.min() and part.max() <= greatest for part in parts)


def blocks(size: int) -> Iterator[slice]:
    """``size`` entries in pieces that a processor's cache holds, so that no copy of all is made."""
    for start in range(0, size, BLOCK_ENTRIES):
        yield slice(start, min(start + BLOCK_ENTRIES, size))


_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def this_process() -> tuple[int, int]:
    """A value that no fork of this process has; forks by C code are told by their id alone.

    In a new PID namespace (a container) a child may have its parent's own process id.
    """
    return _forks, os.getpid()
