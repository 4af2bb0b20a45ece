"""Theorem 1 of DPFL-BNN's paper (Liu et al., arXiv 2308.03320): its claim for T rounds."""

from __future__ import annotations

import math

from murmur.privacy.accounting.bits import epsilon_of_bit, log_moment
from murmur.privacy.search import decreasing_root


def claimed_epsilon(gamma: float, rounds: int, delta: float) -> float:
    """ε of the paper's theorem 1, which counts one bit of one client and T rounds.

    T·g(γ) = ln(1/δ) with g(γ) = ln(p^α q^{1−α} + q^α p^{1−α}) and α = 1 + 2 ln(1/δ)/ε.
    """
    log_delta = -math.log(delta)

    def excess(epsilon: float) -> float:
        return rounds * log_moment(gamma, 2 * log_delta / epsilon) - log_delta

    return decreasing_root(excess, 1e-9, 10 * rounds * epsilon_of_bit(gamma) + 10 * log_delta)


def claimed_gamma(epsilon: float, rounds: int, delta: float) -> float:
    """The largest γ that theorem 1 allows for ``epsilon``: γ ≤ g⁻¹(ln(1/δ)/T)."""
    log_delta = -math.log(delta)

    # Searched as ½ − γ, which falls towards the bound from above.
    def excess(below_half: float) -> float:
        return rounds * log_moment(0.5 - below_half, 2 * log_delta / epsilon) - log_delta

    return 0.5 - decreasing_root(excess, 1e-12, 0.5)
