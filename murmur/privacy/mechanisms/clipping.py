"""What bounds a vector before noise: L2 clipping, its truncation to a grid, and the simplex.

Rounding to the nearest grid point would let a vector outgrow its clipping norm, by √d half steps
in d dimensions. ``truncate`` rounds towards zero, which lets none: the sensitivity of a sum of such
integers, to one vector more or less, is ``CLIP_STEPS`` in any number of dimensions.

A model may have 10⁷ entries: vectors are gone through in blocks, in float64, and nothing of their
size is made but the result.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from murmur.common import blocks, require_finite, require_positive


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
    largest = _largest(x)
    # In units of the largest entry, squares neither overflow nor vanish together.
    length = _norm(x, largest)
    if float(largest) * length <= bound:
        return x.copy()
    factor = bound / length
    shrink = float(np.finfo(x.dtype).eps)
    out = _scaled(x, largest, factor)
    while _length(out) > bound:
        factor *= 1 - shrink
        shrink *= 2
        out = _scaled(x, largest, factor)
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
    return np.float64(max(x.max(initial=0), -x.min(initial=0)))


def _norm(x: NDArray[Any], unit: float) -> float:
    """The L2 norm of ``x`` in ``unit``; 0 for a unit of 0."""
    if unit == 0:
        return 0.0
    flat = x.reshape(-1)
    square = 0.0
    for block in blocks(flat.size):
        part = np.divide(flat[block], unit, dtype=np.float64)
        square += float(part @ part)
    return math.sqrt(square)


def _length(x: NDArray[Any]) -> float:
    """The L2 norm, also where squares would overflow or vanish."""
    largest = _largest(x)
    return float(largest) * _norm(x, largest)


def _scaled(x: NDArray[Any], unit: np.float64, factor: float) -> NDArray[Any]:
    """``x`` / ``unit`` · ``factor``, of its own dtype."""
    flat = x.reshape(-1)
    out = np.empty(flat.shape, x.dtype)
    for block in blocks(flat.size):
        out[block] = flat[block] / unit * factor
    return out.reshape(x.shape)


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
    x = np.asarray(x)
    length = _norm(x, clip)
    if not length <= 1 + 2.0**-40:
        raise ValueError(f"x of norm {length * clip:g}: must be clipped to clip={clip:g} first")
    flat = x.reshape(-1)
    steps = np.empty(flat.shape, np.int64)
    for block in blocks(flat.size):
        unit = np.divide(flat[block], clip, dtype=np.float64)
        steps[block] = np.trunc(unit * (CLIP_STEPS * _SAFE))
    return steps.reshape(x.shape)
