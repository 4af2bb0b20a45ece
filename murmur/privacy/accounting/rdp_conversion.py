"""From a Rényi divergence at one order to ε or δ: dp-accounting converts at fixed orders only."""

from __future__ import annotations

import math


def to_epsilon(divergence: float, order: float, delta: float) -> float:
    """ε at ``delta`` from D_α ≤ ``divergence`` (Canonne, Kamath, Steinke 2020, prop. 12)."""
    excess = order - 1
    return divergence - math.log1p(1 / excess) - (math.log(delta) + math.log(order)) / excess


def to_epsilon_mironov(divergence: float, order: float, delta: float) -> float:
    """ε at ``delta`` from D_α ≤ ``divergence`` (Mironov 2017, prop. 3), as papers use it."""
    return divergence - math.log(delta) / (order - 1)


def to_log_delta(divergence: float, order: float, epsilon: float) -> float:
    """Logarithm of δ(ε) from D_α ≤ ``divergence``, the inverse of ``to_epsilon``."""
    excess = order - 1
    return excess * (divergence - epsilon - math.log1p(1 / excess)) - math.log(order)
