"""What canary clients of one run show of its ε: three estimates that rest on less and less.

A canary is in the run or out of it (or does one thing or its opposite) by a fair coin of its own,
and its score is how much of it the adversary sees. See ``murmur.privacy.one_run`` for what the
coins alone prove, and ``murmur.privacy.trade_off.normal_interval`` for what normal scores show.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from murmur.privacy.one_run import one_run, one_run_gaussian
from murmur.privacy.trade_off import normal_interval

CONFIDENCE = 0.999


@dataclass(frozen=True)
class CanaryAudit:
    """ε of all that a client released in the run, with confidence ``CONFIDENCE`` each.

    ``count``: canaries. ``at_least``: proven by their coins alone. Of Gaussian noise, else None:
    ``if_gaussian``, the same where the trade-off is Gaussian; ``estimate``, in ``low`` to ``high``,
    where scores are normal.
    """

    count: int
    at_least: float
    if_gaussian: float | None = None
    estimate: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(
        cls, scores: ArrayLike, inside: ArrayLike, delta: float, is_gaussian: bool = True
    ) -> CanaryAudit:
        """From the m canaries' ``scores`` and coins, (m,) each, at ``delta`` above 0.

        ``is_gaussian``: whether the noise is.
        """
        values, coins = np.asarray(scores, np.float64), np.asarray(inside, np.bool_)
        proven = one_run(values, coins, delta, CONFIDENCE)
        if not is_gaussian:
            return cls(len(values), proven)
        low, estimate, high = normal_interval(values[coins], values[~coins], delta, CONFIDENCE)
        gaussian = one_run_gaussian(values, coins, delta, CONFIDENCE)
        return cls(len(values), proven, gaussian, estimate, low, high)
