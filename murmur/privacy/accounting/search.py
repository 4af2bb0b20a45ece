"""One-dimensional searches that return a value on a chosen side of the root."""

from __future__ import annotations

import math
from collections.abc import Callable

from murmur.common import require_positive, require_probability

_GOLDEN = (math.sqrt(5) - 1) / 2


def minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a unimodal ``function`` is smallest in [``low``, ``high``], to about 1e-7.

    Infinite and NaN values count as large.
    """

    def value(x: float) -> float:
        try:
            result = function(x)
        except OverflowError:
            return math.inf
        return result if result == result else math.inf

    inner_low, inner_high = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    value_low, value_high = value(inner_low), value(inner_high)
    while high - low > 1e-7:
        if value_low < value_high:
            high, inner_high, value_high = inner_high, inner_low, value_low
            inner_low = high - _GOLDEN * (high - low)
            value_low = value(inner_low)
        else:
            low, inner_low, value_low = inner_low, inner_high, value_high
            inner_high = low + _GOLDEN * (high - low)
            value_high = value(inner_high)
    return (low + high) / 2


def decreasing_root(
    function: Callable[[float], float], low: float, high: float, relative: float = 1e-12
) -> float:
    """The smallest x in [``low``, ``high``] with ``function(x)`` ≤ 0, from above.

    ``function`` falls with x. ``low`` when already ``function(low)`` ≤ 0; ``high`` when even
    ``function(high)`` > 0. Illinois' variant of regula falsi, so that few evaluations suffice,
    with bisection while a value is infinite.
    """
    value_low, value_high = function(low), function(high)
    if value_low <= 0:
        return low
    if value_high > 0:
        return high
    side = 0
    for _ in range(200):
        nearest = relative * max(abs(low), abs(high)) / 2
        if high - low <= 2 * nearest:
            break
        middle = (low + high) / 2
        if math.isfinite(value_low) and math.isfinite(value_high) and value_low > value_high:
            middle = (low * value_high - high * value_low) / (value_high - value_low)
        # Off the ends by a little, so that an end which is the root draws in the other one.
        middle = min(max(middle, low + nearest), high - nearest)
        value = function(middle)
        if value <= 0:
            high, value_high = middle, value
            value_low = value_low / 2 if side == -1 else value_low
            side = -1
        else:
            low, value_low = middle, value
            value_high = value_high / 2 if side == 1 else value_high
            side = 1
    return high


def require_budget(epsilon: float, delta: float | None = None) -> None:
    """ValueError unless noise can be searched for: ε finite and above 0, δ in (0, 1)."""
    require_positive("epsilon", epsilon)
    if delta is not None:
        require_probability("delta", delta)
