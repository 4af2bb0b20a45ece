"""Rényi divergences of the Gaussian mechanism on Poisson samples of the records (DP-SGD).

Neighbours differ by one record more or less (or by one record nulled, which costs the same).
The worst pair is P = (1−q)·N(0, m²) + q·N(1, m²) against Q = N(0, m²), in this direction
(Mironov, Talwar, Zhang 2019). Ours, since dp-accounting knows no discrete noise; where the noise is
fine enough to count as continuous, its privacy-loss distribution is tighter (``pld``).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, logsumexp

_HIGHEST_ORDER = 10_000.0


def sampled_divergence(rate: float, noise_multiplier: float, order: float) -> float:
    """D_α of one step at the next integer order, which is larger; inf above order 10⁴.

    The closed form (Mironov et al. 2019, eq. 5) also bounds discrete noise on integers: its moments
    E_Q[(P/Q)^k] are those of the discrete Gaussian between integer vectors, which are at most the
    continuous one's (Canonne, Kamath, Steinke 2020, proposition 5), and x ↦ Δ − x, which keeps the
    integers, makes this the worse direction (Mironov et al. 2019, theorem 5).
    """
    if order > _HIGHEST_ORDER:
        return math.inf
    inverse, whole = 1 / noise_multiplier / noise_multiplier, math.ceil(order)
    if rate == 1:
        return whole / 2 * inverse
    i = np.arange(whole + 1, dtype=np.float64)
    log_choose = gammaln(whole + 1) - gammaln(i + 1) - gammaln(whole - i + 1)
    log_chance = log_choose + i * math.log(rate) + (whole - i) * math.log1p(-rate)
    return float(logsumexp(log_chance + (i * i - i) / 2 * inverse)) / (whole - 1)
