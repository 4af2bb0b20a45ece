"""What bounds a vector before noise: L2 clipping, its truncation to a grid, and the simplex.

Rounding to the nearest grid point would let a vector outgrow its clipping norm, by √d half steps
in d dimensions. ``truncate`` rounds towards zero, which lets none: the sensitivity of a sum of such
integers, to one vector more or less, is ``CLIP_STEPS`` in any number of dimensions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from murmur.common import require_finite, require_positive


def clip_l2(x: NDArray[Any], bound: float) -> NDArray[Any]:
    """``x`` scaled down, where it is longer, to L2 norm ``bound`` (x / max(1, ‖x‖/C)).

    The norm is that of the whole array, whatever its shape. Rounding cannot carry the result
    past the bound: its norm, computed in float64, is at most ``bound``.

    Args:
        x: finite floats of any shape; left as they are.
        bound: the largest norm allowed, C, finite and above 0.

    Returns:
        A new array of the same shape and dtype.

    Raises:
        ValueError: ``bound`` is out of range, or ``x`` holds NaN, infinities or no floats.
    """
    require_positive("bound", bound)
    x = np.asarray(x)
    if x.dtype.kind != "f":
        raise ValueError(f"x of dtype {x.dtype}: must hold floats")
    require_finite("x", x)
    if _length(x) <= bound:
        return x.copy()
    # Entries up to 1 first: their squares neither overflow nor vanish together.
    unit = x / _largest(x)
    factor = bound / _length(unit)
    shrink = float(np.finfo(x.dtype).eps)
    out = (unit * factor).astype(x.dtype)
    while _length(out) > bound:
        factor *= 1 - shrink
        shrink *= 2
        out = (unit * factor).astype(x.dtype)
    return out


def project_simplex(x: ArrayLike) -> NDArray[np.float64]:
    """The nearest point, in L2, of the probability simplex, along the last axis.

    Sort-based algorithm of Held, Wolfe and Crowder (1974); Duchi et al. (2008), figure 1.

    Args:
        x: finite numbers, shape (…, d), d ≥ 1.

    Returns:
        Non-negative rows that sum to 1, shape (…, d).

    Raises:
        ValueError: ``x`` is empty along its last axis, or holds NaN or infinities.
    """
    points = np.asarray(x, dtype=np.float64)
    if points.ndim == 0 or points.shape[-1] == 0:
        raise ValueError(f"x of shape {points.shape}: the last axis must have an entry")
    require_finite("x", points)
    # Only differences matter, and without the maximum large entries lose no digits of them.
    points = points - points.max(axis=-1, keepdims=True)
    descending = -np.sort(-points, axis=-1)
    excess = np.cumsum(descending, axis=-1) - 1
    support = np.arange(1, points.shape[-1] + 1)
    size = np.count_nonzero(descending * support > excess, axis=-1, keepdims=True)
    shift = np.take_along_axis(excess, size - 1, axis=-1) / size
    return np.maximum(points - shift, 0)


def _largest(x: NDArray[Any]) -> np.float64:
    return np.abs(x).max(initial=0).astype(np.float64)


def _length(x: NDArray[Any]) -> float:
    """The L2 norm in float64, also where squares would overflow or vanish."""
    largest = _largest(x)
    if largest:
        return float(largest) * float(np.linalg.norm(x / largest))
    return 0.0


CLIP_STEPS = 1 << 20
"""The clipping norm in grid steps."""

# More than rounding in float64 can add to a norm, in any number of dimensions met here.
_SAFE = 1 - 2.0**-30


def truncate(x: NDArray[Any], clip: float) -> NDArray[np.int64]:
    """``x`` of norm at most ``clip`` in steps of clip/2²⁰, towards zero; same shape.

    Raises:
        ValueError: ``clip`` is out of range, or ``x`` is longer than ``clip`` or not finite.
    """
    require_positive("clip", clip)
    unit = np.asarray(x, dtype=np.float64) / clip
    length = float(np.linalg.norm(unit))
    if not length <= 1 + 2.0**-40:
        raise ValueError(f"x of norm {length * clip:g}: must be clipped to clip={clip:g} first")
    return np.trunc(unit * (CLIP_STEPS * _SAFE)).astype(np.int64)
