"""The least noise that meets a target ε, for any event that one parameter scales."""

from __future__ import annotations

import math
from collections.abc import Callable

from privacy.accounting import rdp
from privacy.accounting.compose import epsilon as epsilon_of
from privacy.accounting.flatten import flatten
from privacy.accounting.search import decreasing_root
from privacy.accounting.threat import Threat, View
from privacy.events import (
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    RepeatedEvent,
    SecurelySummedEvent,
)

# The result meets the target; it is within this of the best one, relatively.
_PRECISION = 1e-7
# Steps of ln(noise) on the way down from the largest noise.
_STRIDE = 1.5


def least_noise(cost: Callable[[float], float], epsilon: float, low: float, high: float) -> float:
    """The smallest x in [``low``, ``high``] with ``cost(x)`` ≤ ``epsilon``.

    ``cost``: ε as a function of some measure of noise x > 0, with which it falls. Raises
    ValueError for ε out of range, or if even ``high`` costs more.
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon={epsilon}: must be finite and above 0")

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
        upper, lower = lower, max(math.log(low), lower - _STRIDE)
    return math.exp(decreasing_root(excess, lower, upper, _PRECISION))


def label_epsilon(
    epsilon: float, delta: float, categories: int, labels: int, threat: Threat = Threat.LOCAL
) -> float:
    """The largest ε0 per label with which ``labels`` labels cost at most ``epsilon`` in all.

    PrivateKT's ``privacy.per=run``: a round of K labels may then spend K·ε0.
    """

    def cost(noise: float) -> float:
        event = RepeatedEvent(RandomizedResponseEvent(1 / noise, categories), labels)
        return epsilon_of(event, delta, threat).epsilon

    # Basic composition always allows ε/labels.
    most = labels / epsilon
    return 1 / least_noise(cost, epsilon, min(most, 1e-3), most)


def bits_gamma(
    epsilon: float,
    delta: float,
    bits: int,
    rounds: int,
    threat: Threat = Threat.LOCAL,
    honest_clients: int = 1,
    sensitivity_bits: int | None = None,
    conversion: rdp.Conversion | None = None,
) -> float:
    """The largest γ with which ``rounds`` vectors of ``bits`` bits cost at most ``epsilon``.

    ``honest_clients``: how many are summed under secure aggregation. ``sensitivity_bits``:
    bits in which neighbours differ, all of them if left out. ``conversion``: count by Rényi
    divergence and this conversion alone, to reproduce a paper's figure; by the best proven
    bound if left out.
    """
    differing = bits if sensitivity_bits is None else sensitivity_bits

    def cost(noise: float) -> float:
        vector = RandomizedBitsEvent(_gamma(noise), bits, differing)
        event = RepeatedEvent(SecurelySummedEvent(vector, honest_clients), rounds)
        if conversion is None:
            return epsilon_of(event, delta, threat).epsilon
        return rdp.epsilon(flatten(event, View(threat)), delta, conversion)

    return _gamma(least_noise(cost, epsilon, 1e-6, 1e9))


def _gamma(noise: float) -> float:
    """γ in (0, ½), falling with ``noise`` > 0."""
    return 0.5 / (1 + noise)
