"""Refusals of bad numbers: each names the setting, its value, and what is allowed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


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


def require_finite(name: str, x: NDArray[Any]) -> None:
    """Raise ValueError if ``x`` holds NaN or infinities."""
    import numpy as np  # a ledger, whose events are checked here, does without

    if not np.isfinite(x).all():
        raise ValueError(f"{name}: holds NaN or infinities, which no clipping can bound")
