"""One-dimensional searches that return a value on a chosen side of the answer.

For accounting, audits and papers: noise must be enough, an ε must not be below the truth and a
measured one not above it, so a root that is only near is of no use. Functions are taken to be
costly, floats to overflow, and values to be infinite where nothing is known.
"""

import math
from collections.abc import Callable

from murmur.checks import require_positive, require_probability

_GOLDEN = (math.sqrt(5) - 1) / 2
# Steps of ln(noise) on the way down from the largest noise.
_STRIDE = 1.5


def minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a unimodal ``function`` is smallest in [``low``, ``high``], to about 1e-7.

    By golden sections, since tilts and orders are searched where no derivative is at hand. Infinite
    and NaN values, and an OverflowError, count as large.
    """

    def value(x: float) -> float:
        try:
            result = function(x)
        except OverflowError:
            return math.inf
        return math.inf if math.isnan(result) else result

    inner_low = high - _GOLDEN * (high - low)
    inner_high = low + _GOLDEN * (high - low)
    value_low = value(inner_low)
    value_high = value(inner_high)
    while high - low > 1e-7:
        if value_low < value_high:
            high = inner_high
            inner_high = inner_low
            value_high = value_low
            inner_low = high - _GOLDEN * (high - low)
            value_low = value(inner_low)
        else:
            low = inner_low
            inner_low = inner_high
            value_low = value_high
            inner_high = low + _GOLDEN * (high - low)
            value_high = value(inner_high)
    return (low + high) / 2


def decreasing_root(
    function: Callable[[float], float], low: float, high: float, relative: float = 1e-12
) -> float:
    """The smallest x in [``low``, ``high``] with ``function(x)`` ≤ 0, from above.

    ``function`` falls with x. ``low`` when already ``function(low)`` ≤ 0; ``high`` when even
    ``function(high)`` > 0. ``relative``: how far the result may lie above the root. Illinois'
    variant of regula falsi, so that few evaluations suffice, with bisection while a value is
    infinite.
    """
    value_low = function(low)
    value_high = function(high)
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
        # The end that stays twice has its value halved: else it would hardly ever move.
        if value <= 0:
            high = middle
            value_high = value
            if side == -1:
                value_low /= 2
            side = -1
        else:
            low = middle
            value_low = value
            if side == 1:
                value_high /= 2
            side = 1
    return high


def least_noise(
    cost: Callable[[float], float],
    epsilon: float,
    low: float,
    high: float,
    precision: float = 1e-7,
) -> float:
    """The smallest x in [``low``, ``high``] with ``cost(x)`` ≤ ``epsilon``.

    ``cost``: ε as a function of some measure of noise x > 0, with which it falls. The result
    meets the target, and is within ``precision`` of the best one, relatively. Raises ValueError
    for ε out of range, or if even ``high`` costs more.
    """
    require_budget(epsilon)

    def excess(log_noise: float) -> float:
        return cost(math.exp(log_noise)) - epsilon

    upper = math.log(high)
    if excess(upper) > 0:
        raise ValueError(
            f"epsilon={epsilon}: cannot be met, not even with the most noise; raise it, or "
            "release less often"
        )
    # Down from the cheap side: little noise means wide distributions.
    lower = upper
    while excess(lower) <= 0:
        if lower <= math.log(low):
            return low
        upper = lower
        lower = max(math.log(low), lower - _STRIDE)
    return math.exp(decreasing_root(excess, lower, upper, precision))


def require_budget(epsilon: float, delta: float | None = None) -> None:
    """ValueError unless noise can be searched for: ε finite and above 0, δ in (0, 1)."""
    require_positive("epsilon", epsilon)
    if delta is not None:
        require_probability("delta", delta)
