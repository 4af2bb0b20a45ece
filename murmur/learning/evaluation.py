"""How good a model is, from its logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Evaluation:
    """Results on one set of examples.

    Attributes:
        accuracy: share of the examples whose largest logit is the label's, 0 to 1.
        loss: mean cross-entropy in nats.
        correct: number of those examples.
        count: number of examples.
    """

    accuracy: float
    loss: float
    correct: int
    count: int


def evaluate_logits(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> Evaluation:
    """Accuracy and mean cross-entropy of ``logits`` (N, C) against ``labels`` (N,).

    Ties go to the smallest class. The loss is summed in float64.

    Raises:
        ValueError: there is no example, the lengths differ, or a label is no class.
    """
    count = len(logits)
    if count == 0 or labels.shape != (count,):
        raise ValueError(f"labels={labels.shape}: must be ({count},), at least one, as the logits")
    if labels.min() < 0 or labels.max() >= logits.shape[1]:
        raise ValueError(f"labels={labels.min()}..{labels.max()}: must be below {logits.shape[1]}")
    scores = logits.astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(count), labels]
    correct = int(np.count_nonzero(logits.argmax(axis=1) == labels))
    return Evaluation(correct / count, float(losses.mean()), correct, count)


def area_under_curve(scores: NDArray[np.floating], labels: NDArray[np.int64]) -> float:
    """Area under the ROC curve of ``scores`` (N,) for labels 0 and 1; NaN if one is missing.

    The share of pairs of a 1 and a 0 in which the 1 scores higher; ties count half.
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    ones = labels == 1
    positives, negatives = int(ones.sum()), int((~ones).sum())
    if not positives or not negatives:
        return float("nan")
    wins = ranks[ones].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * negatives))
