"""Clipped vectors as integers whose L2 norm is at most 2²⁰, exactly.

Rounding to the nearest grid point would let a vector outgrow its clipping norm, by √d half steps
in d dimensions. Rounding towards zero lets none: the sensitivity of a sum of such integers, to
one vector more or less, is ``CLIP_STEPS`` in any number of dimensions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.common import require_positive

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
