"""Binomial probabilities, accurate relative to each value."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from murmur.privacy.accounting.lattice import Floats


def probabilities(trials: int, success: float) -> Floats:
    """P(Bin(``trials``, ``success``) = 0 … ``trials``), shape (trials + 1,); 0 < success < 1."""
    k = np.arange(trials + 1, dtype=np.float64)
    log_choose = gammaln(trials + 1) - gammaln(k + 1) - gammaln(trials - k + 1)
    log_probability = k * math.log(success) + (trials - k) * math.log1p(-success)
    return np.asarray(np.exp(log_choose + log_probability))
