"""How well scores tell two groups apart: area under the ROC curve, and hits at few false alarms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

FEW_ALARMS = 1e-3


@dataclass(frozen=True)
class Success:
    """``auc``: 0.5 is chance. ``hits``: true positives where ``FEW_ALARMS`` of the others alarm.

    The latter is what counts for the one who is hit (Carlini et al., "Membership inference attacks
    from first principles", IEEE S&P 2022); chance is ``FEW_ALARMS``.
    """

    auc: float
    hits: float


def success(positives: ArrayLike, negatives: ArrayLike) -> Success:
    """Of scores that should be larger for ``positives`` (n,) than for ``negatives`` (m,).

    Raises:
        ValueError: a group is empty, or a score is NaN.
    """
    yes, no = (np.asarray(scores, np.float64).ravel() for scores in (positives, negatives))
    if not (yes.size and no.size):
        raise ValueError("scores: both groups need at least one")
    if np.isnan(yes).any() or np.isnan(no).any():
        raise ValueError("scores: hold NaN")
    # The share of pairs in the right order, ties for half (Mann and Whitney 1947).
    ranks = rankdata(np.concatenate([yes, no]))[: yes.size].sum()
    auc = (ranks - yes.size * (yes.size + 1) / 2) / (yes.size * no.size)
    threshold = np.sort(no)[::-1][int(FEW_ALARMS * no.size)]
    return Success(float(auc), float(np.mean(yes > threshold)))
