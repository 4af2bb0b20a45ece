"""Uniform integers and, for the idealised mechanisms only, uniform doubles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from murmur.privacy.mechanisms.fixed_point import ONE
from murmur.privacy.noise import NoiseGenerator


def uniform_below(bound: int, n: int, rng: NoiseGenerator) -> NDArray[np.uint64]:
    """``n`` integers uniform in [0, bound), exactly, by rejection; 1 ≤ bound < 2⁶⁴."""
    if bound == 1:
        return np.zeros(n, dtype=np.uint64)
    out = np.full(n, bound, dtype=np.uint64)
    pending = np.arange(n)
    while pending.size:
        out[pending] = rng.uint64(pending.size) // np.uint64(ONE // bound)
        pending = pending[out[pending] >= bound]
    return out
