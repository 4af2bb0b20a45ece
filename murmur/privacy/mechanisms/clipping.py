"""What bounds a vector before noise: L2 clipping, its truncation to a grid, and the simplex.

Rounding to the nearest grid point would let a vector outgrow its clipping norm, by √d half steps
in d dimensions. ``truncate`` rounds towards zero, which lets none: the sensitivity of a sum of such
integers, to one vector more or less, is ``CLIP_STEPS`` in any number of dimensions.
``clip_to_steps`` is both at once, in fewer passes.

A model may have 10⁷ entries: vectors are gone through in blocks, in float64, and nothing of their
size is made but the result.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from murmur.checks import blocks, require_finite, require_positive

MIN_NORM = float(np.finfo(np.float64).tiny)
"""The least clipping norm. Below it norms are whole numbers of the least float, so that √2 is 1."""


def clip_l2(x: NDArray[Any], bound: float) -> NDArray[Any]:
    """``x`` scaled down, where it is longer, to L2 norm ``bound`` (x / max(1, ‖x‖/C)).

    The norm is that of the whole array, whatever its shape. Rounding cannot carry the result
    past the bound: its norm, computed in float64, is at most ``bound``.

    Args:
        x: finite floats of any shape.
        bound: the largest norm allowed, C, finite and at least ``MIN_NORM``.

    Returns:
        A new array, of the same shape and dtype.

    Raises:
        ValueError: ``bound`` is out of range, or ``x`` holds NaN, infinities or no floats.
    """
    x = np.asarray(x)
    scale = _clipping(x, bound)
    out = np.empty(x.shape, x.dtype)
    for clipped, part in zip(_blocks(out), _scaled(x, scale), strict=True):
        clipped[...] = part
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


class _Scale(NamedTuple):
    """Scale that makes a vector short enough: its largest entry, and the factor for the rest."""

    unit: np.float64
    factor: float


def _clipping(x: NDArray[Any], bound: float) -> _Scale | None:
    """How ``x`` is scaled to L2 norm ``bound``; None where it is no longer than that.

    Raises ValueError as ``clip_l2`` does.
    """
    require_positive("bound", bound)
    if x.dtype.kind != "f":
        raise ValueError(f"x of dtype {x.dtype}: must hold floats")
    if bound < MIN_NORM:
        raise ValueError(f"bound={bound}: must be at least {MIN_NORM:g}")
    ends = [max(part.max(), -part.min()) for part in _blocks(x)]
    largest = np.float64(np.max(ends, initial=0))  # absolute entry; NaN where there is one
    require_finite("x", np.array(largest))  # as it is not where any entry is not
    # In units of the largest entry, squares neither overflow nor vanish together.
    length = _norm_of(_blocks(x), largest)
    if float(largest) * length <= bound:
        return None
    scale = _Scale(largest, bound / length)
    shrink = float(np.finfo(x.dtype).eps)
    while _scaled_length(x, scale) > bound:
        scale = scale._replace(factor=scale.factor * (1 - shrink))
        shrink *= 2
    return scale


def _norm_of(pieces: Iterable[NDArray[Any]], unit: float) -> float:
    """The L2 norm of all ``pieces`` together in ``unit``; 0 for a unit of 0."""
    if unit == 0:
        return 0.0
    square = 0.0
    for piece in pieces:
        part = np.divide(piece, unit, dtype=np.float64)
        square += float(part @ part)
    return math.sqrt(square)


def _scaled_length(x: NDArray[Any], scale: _Scale) -> float:
    """The L2 norm of ``x`` scaled, also where squares would overflow or vanish."""
    largest = float(x.dtype.type(scale.factor))  # which is what becomes of the largest entry
    return largest * _norm_of(_scaled(x, scale), largest)


def _scaled(x: NDArray[Any], scale: _Scale | None) -> Iterator[NDArray[Any]]:
    """``x`` / unit · factor, of its own dtype, in blocks; ``x`` itself without a scale."""
    for part in _blocks(x):
        if scale is not None:
            part = part / scale.unit
            part *= scale.factor
        yield part.astype(x.dtype, copy=False)


def _blocks(x: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Views of ``x``, one after the other."""
    flat = x.reshape(-1)
    return (flat[block] for block in blocks(flat.size))


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
    length = _norm_of(_blocks(x), clip)
    if not length <= 1 + 2.0**-40:
        raise ValueError(f"x of norm {length * clip:g}: must be clipped to clip={clip:g} first")
    return _steps(x, None, clip, None)


def clip_to_steps(
    x: NDArray[Any], clip: float, out: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], bool]:
    """``truncate`` of ``clip_l2``, and whether ``x`` was no longer than ``clip`` before.

    Raises ValueError as ``clip_l2`` does. ``out``: where they go, a new array by default; it may be
    the memory of ``x``.
    """
    x = np.asarray(x)
    scale = _clipping(x, clip)
    return _steps(x, scale, clip, out), scale is None


def _steps(
    x: NDArray[Any], scale: _Scale | None, clip: float, out: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    """``x`` scaled, which is no longer than ``clip``, in steps of clip/2²⁰, towards zero."""
    if out is None:
        out = np.empty(x.shape, np.int64)
    for part, steps in zip(_scaled(x, scale), _blocks(out), strict=True):
        unit = np.divide(part, clip, dtype=np.float64)
        unit *= CLIP_STEPS * _SAFE
        steps[...] = unit  # which cuts what is behind the point
    return out
