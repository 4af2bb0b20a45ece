"""Rényi divergences of the Gaussian mechanism on Poisson samples of the records (DP-SGD).

Neighbours differ by one record more or less (or by one record nulled, which costs the same).
The worst pair is P = (1−q)·N(0, m²) + q·N(1, m²) against Q = N(0, m²), in this direction
(Mironov, Talwar, Zhang 2019).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, logsumexp

from privacy.accounting.renyi import Pair

_HIGHEST_ORDER = 10_000.0
_REACH = 12.0


def sampled_divergence(rate: float, noise_multiplier: float, order: float) -> float:
    """D_α of one step; inf above order 10⁴, where it is no use.

    By the trapezoidal rule: the integrand is analytic within πm² of the real axis and decays
    like a Gaussian, so the rule's error falls like e^{−2π²m²/h}, with this h below float
    rounding. Where that would be long, D at the next integer order, which is larger.
    """
    if rate == 1:
        return order / 2 / noise_multiplier / noise_multiplier
    if order > _HIGHEST_ORDER:
        return math.inf
    if order > 32 or noise_multiplier < 0.1:
        return sampled_divergence_integer(rate, noise_multiplier, math.ceil(order))
    m = noise_multiplier
    h = min(m, m * m) / 4
    x = np.arange(-_REACH * m, order + _REACH * m, h)
    log_base = math.log(h / (m * math.sqrt(2 * math.pi))) - (x / m) ** 2 / 2
    gain = (x - 0.5) / m / m
    log_ratio = np.where(
        gain < 30,
        np.log1p(rate * np.expm1(np.minimum(gain, 30))),
        gain + np.log(rate + (1 - rate) * np.exp(-np.maximum(gain, 30))),
    )
    return float(Pair(log_base, log_ratio).divergence(order))


def sampled_divergence_integer(rate: float, noise_multiplier: float, order: int) -> float:
    """D_α of one step at an integer order, in closed form (Mironov et al. 2019, eq. 5)."""
    if rate == 1:
        return order / 2 / noise_multiplier / noise_multiplier
    i = np.arange(order + 1, dtype=np.float64)
    log_choose = gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)
    log_chance = log_choose + i * math.log(rate) + (order - i) * math.log1p(-rate)
    return float(logsumexp(log_chance + (i * i - i) / 2 / noise_multiplier / noise_multiplier)) / (
        order - 1
    )


def sampled_integer_divergence(rate: float, noise_multiplier: float, order: float) -> float:
    """D_α of one step with discrete Gaussian noise on integers; inf above order 10⁴.

    At integer orders the closed form bounds it too: its moments E_Q[(P/Q)^k] are those of the
    discrete Gaussian between integer vectors, which are at most the continuous one's (Canonne,
    Kamath, Steinke 2020, proposition 5), and x ↦ Δ − x, which keeps the integers, makes this
    the worse direction (Mironov et al. 2019, theorem 5). In between, D grows with α.
    """
    if order > _HIGHEST_ORDER:
        return math.inf
    return sampled_divergence_integer(rate, noise_multiplier, math.ceil(order))
