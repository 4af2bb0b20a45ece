"""What bounds a vector before noise: L2 clipping, its truncation to a grid, and the simplex.

Rounding to the nearest grid point would let a vector outgrow its clipping norm, by √d half steps
in d dimensions. ``truncate`` rounds towards zero, which lets none: the sensitivity of a sum of such
integers, to one vector more or less, is ``CLIP_STEPS`` in any number of dimensions.

A model may have 10⁷ entries: vectors are gone through in blocks, in float64, and nothing of their
size is made but the result.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from murmur.common import blocks, require_finite, require_positive


def clip_l2(x: NDArray[Any], bound: float, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """``x`` scaled down, where it is longer, to L2 norm ``bound`` (x / max(1, ‖x‖/C)).

    The norm is that of the whole array, whatever its shape. Rounding cannot carry the result
    past the bound: its norm, computed in float64, is at most ``bound``.

    Args:
        x: finite floats of any shape.
        bound: the largest norm allowed, C, finite and above 0.
        out: where the result goes, of the same shape and dtype; it may be ``x`` itself. A new array
            by default.

    Returns:
        ``out``.

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
    if out is None:
        out = np.empty(x.shape, x.dtype)
    if float(largest) * length <= bound:
        if out is not x:
            out[...] = x
        return out
    factor = bound / length
    shrink = float(np.finfo(x.dtype).eps)
    while _scaled_length(x, largest, factor) > bound:
        factor *= 1 - shrink
        shrink *= 2
    for given, scaled in zip(_blocks(x), _blocks(out), strict=True):
        scaled[...] = given / largest * factor
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
    return _norm_of(_blocks(x), unit)


def _norm_of(pieces: Iterable[NDArray[Any]], unit: float) -> float:
    if unit == 0:
        return 0.0
    square = 0.0
    for piece in pieces:
        part = np.divide(piece, unit, dtype=np.float64)
        square += float(part @ part)
    return math.sqrt(square)


def _scaled_length(x: NDArray[Any], unit: np.float64, factor: float) -> float:
    """The L2 norm of ``x`` / ``unit`` · ``factor``, also where squares would overflow or vanish."""
    largest = max(_largest(part) for part in _scaled(x, unit, factor))
    return float(largest) * _norm_of(_scaled(x, unit, factor), largest)


def _scaled(x: NDArray[Any], unit: np.float64, factor: float) -> Iterator[NDArray[Any]]:
    """``x`` / ``unit`` · ``factor``, of its own dtype, in blocks."""
    for part in _blocks(x):
        yield (part / unit * factor).astype(x.dtype, copy=False)


def _blocks(x: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Views of ``x``, one after the other."""
    flat = x.reshape(-1)
    return (flat[block] for block in blocks(flat.size))


CLIP_STEPS = 1 << 20
"""The clipping norm in grid steps."""

# More than rounding in float64 can add to a norm, in any number of dimensions met here.
_SAFE = 1 - 2.0**-30


def truncate(
    x: NDArray[Any], clip: float, out: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """``x`` of norm at most ``clip`` in steps of clip/2²⁰, towards zero; same shape.

    ``out``: where they go, a new array by default; it may be the memory of ``x``.

    Raises:
        ValueError: ``clip`` is out of range, or ``x`` is longer than ``clip`` or not finite.
    """
    require_positive("clip", clip)
    x = np.asarray(x)
    length = _norm(x, clip)
    if not length <= 1 + 2.0**-40:
        raise ValueError(f"x of norm {length * clip:g}: must be clipped to clip={clip:g} first")
    if out is None:
        out = np.empty(x.shape, np.int64)
    for given, steps in zip(_blocks(x), _blocks(out), strict=True):
        unit = np.divide(given, clip, dtype=np.float64)
        unit *= CLIP_STEPS * _SAFE
        steps[...] = np.trunc(unit, out=unit)
    return out
