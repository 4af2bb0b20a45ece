"""Means over seeds with their 95 % interval: the one meaning that ± has in tables and figures."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95  # of intervals over repetitions
INTERVAL = (
    "±: half of the 95% interval of the mean over seeds (Student's t); in brackets the interval "
    "itself where it ends at 0 or 1"
)
# In the names of scores that lie in [0, 1], as scikit-learn and torchmetrics have them.
_SHARES = ("accuracy", "auc", "auroc", "f1", "precision", "recall", "jaccard")


def is_share(score: str) -> bool:
    """Returns whether a score of this name lies in [0, 1]; False for unknown names."""
    return any(word in score.lower() for word in _SHARES)


def interval(scores: Iterable[float], share: bool = False) -> tuple[float, float]:
    """Ends of the 95 % interval of the mean of ``scores``, by Student's t; one score is both.

    ``share``: scores lie in [0, 1], where the interval ends then.
    """
    values = np.array(list(scores), dtype=np.float64)
    mean = float(values.mean())
    if len(values) < 2:
        return mean, mean
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * error
    low = mean - half
    high = mean + half
    if share and values.min() >= 0 and values.max() <= 1:
        low = max(low, 0.0)
        high = min(high, 1.0)
    return low, high


def spread(scores: Iterable[float], share: bool = False) -> dict[str, float]:
    """Mean, low and high of ``interval`` over so many ``runs``; {} without a score."""
    values = list(scores)
    if not values:
        return {}
    low, high = interval(values, share)
    mean = math.fsum(values) / len(values)
    return {"mean": mean, "low": low, "high": high, "runs": len(values)}


def with_interval(found: Mapping[str, float]) -> str:
    """A mean of ``spread`` with its interval, as ``INTERVAL`` says; "–" for none."""
    if not found:
        return "–"
    mean = found["mean"]
    form = ".3f" if abs(mean) < 10 else ",.4g"
    if found["runs"] < 2:
        return f"{mean:{form}}"
    below = mean - found["low"]
    above = found["high"] - mean
    if math.isclose(below, above, rel_tol=1e-6, abs_tol=1e-9):
        return f"{mean:{form}}\u00a0±\u00a0{above:{form}}"
    return f"{mean:{form}} [{found['low']:{form}},\u00a0{found['high']:{form}}]"
