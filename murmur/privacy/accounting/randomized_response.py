"""k-ary randomised response: its probabilities and its exact composition.

A label is kept with probability e^{ε0}/(e^{ε0}+C−1), otherwise one of the other C − 1 is
reported. For two neighbours the loss of one label is +ε0, −ε0 or 0, and no pair of inputs is
worse than another; so the composition below is not a bound but the value. Ours, since dp-accounting
0.6 ignores how often randomised response is repeated.
"""

from __future__ import annotations

import math

import numpy as np

from murmur.privacy.accounting import privacy_loss
from murmur.privacy.accounting.lattice import LatticeLoss


def report_probabilities(epsilon: float, categories: int) -> tuple[float, float]:
    """Probability of the true category and of each other one."""
    other = math.exp(-epsilon) / (1 + (categories - 1) * math.exp(-epsilon))
    return 1 / (1 + (categories - 1) * math.exp(-epsilon)), other


def loss(epsilon: float, categories: int, count: int = 1) -> LatticeLoss:
    """Privacy loss of ``count`` labels at ``epsilon`` each."""
    true, other = report_probabilities(epsilon, categories)
    return LatticeLoss(epsilon, -1, np.array([other, (categories - 2) * other, true]), count)


def composed_epsilon(epsilon: float, categories: int, count: int, delta: float) -> float:
    """Exact ε at ``delta`` of ``count`` labels, each reported at ``epsilon``."""
    return privacy_loss.epsilon([loss(epsilon, categories, count)], delta)
