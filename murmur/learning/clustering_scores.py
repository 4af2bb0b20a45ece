"""How well vectors form clusters, and whether a score says more than noise would.

Scores are scikit-learn's: silhouette (Rousseeuw 1987), Calinski–Harabasz (1974), Davies–Bouldin
(1979). Undefined ones, where fewer than two clusters remain or every vector is a cluster of its
own, are NaN. A score that is computed with the vectors' own argmax as labels flatters: noise that
is projected onto the simplex piles up in its corners and scores 0.97. Hence ``Verdict``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

METRICS = ("silhouette", "calinski_harabasz", "davies_bouldin")
_SIGMAS = 4.0


def clustering_score(metric: str, vectors: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The score of ``vectors`` (n, d) under ``labels`` (n,); NaN where it is undefined.

    Raises:
        ValueError: ``metric`` is unknown, or a vector is not finite.
    """
    if metric not in METRICS:
        raise ValueError(f"metric={metric}: must be one of {', '.join(METRICS)}")
    if not 2 <= len(np.unique(labels)) < len(vectors):
        return math.nan
    from sklearn import metrics

    score = getattr(metrics, f"{metric}_score")
    return float(score(vectors, labels))


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Spearman's ρ of two series (n,); NaN for fewer than 3 points or a constant series."""
    pairs = np.column_stack([first, second]).astype(float)
    pairs = pairs[np.isfinite(pairs).all(axis=1)]
    if len(pairs) < 3 or np.any(np.ptp(pairs, axis=0) == 0):
        return math.nan
    from scipy.stats import spearmanr

    return float(spearmanr(pairs[:, 0], pairs[:, 1]).statistic)


@dataclass(frozen=True)
class Verdict:
    """A protected score beside what it must be compared with.

    Attributes:
        score: of what was released.
        nulls: of pure noise of the same scale, processed in the same way, a few draws.
        clean: of the unprotected vectors; NaN outside simulations. Never a release.
        retention: share of clients whose label survived the protection; NaN likewise.
        chance: the retention of labels that are independent of the clean ones.
        clients: n.
        higher_is_better: false for Davies–Bouldin.
    """

    score: float
    nulls: tuple[float, ...]
    clean: float
    retention: float
    chance: float
    clients: int
    higher_is_better: bool

    @property
    def null(self) -> float:
        """The mean of ``nulls``; NaN where noise has no score."""
        return float(np.mean(self.nulls))

    @property
    def beats_noise(self) -> bool:
        """Better than every draw of noise and four of their deviations above the mean of them.

        Where the labels' retention is known, it too must lie four deviations above chance.
        """
        sign = -1.0
        if self.higher_is_better:
            sign = 1.0
        nulls = sign * np.array(self.nulls)
        known = nulls[np.isfinite(nulls)]
        if not math.isfinite(self.score):
            return False
        spread = 0.0
        if len(known) > 1:
            spread = float(known.std(ddof=1))
        if len(known):
            limit = max([known.max(), known.mean() + _SIGMAS * spread])
        else:
            limit = -math.inf
        return sign * self.score > limit and not self.is_at_chance

    @property
    def is_at_chance(self) -> bool:
        """Whether the labels tell nothing of the clean ones; False where that is not known."""
        if not math.isfinite(self.retention):
            return False
        deviation = math.sqrt(self.chance * (1 - self.chance) / self.clients)
        return self.retention <= self.chance + _SIGMAS * deviation


def judge(
    metric: str,
    vectors: NDArray[np.float64],
    labels: NDArray[np.int64],
    nulls: Sequence[tuple[NDArray[np.float64], NDArray[np.int64]]],
    clean: NDArray[np.float64] | None = None,
) -> Verdict:
    """Score vectors beside pure noise and, in simulations, the unprotected vectors.

    Args:
        metric: one of ``METRICS``.
        vectors: (n, d), as they were released.
        labels: (n,), their clusters.
        nulls: vectors and labels of pure noise, processed in the same way.
        clean: (n, d), unprotected; None outside simulations.
    """
    clean_score = retention = chance = math.nan
    if clean is not None:
        truth = clean.argmax(axis=1)
        clean_score = clustering_score(metric, clean, truth)
        retention = float(np.mean(truth == labels))
        size = int(max(truth.max(), labels.max())) + 1
        shares = [np.bincount(each, minlength=size) / len(each) for each in (truth, labels)]
        chance = float(shares[0] @ shares[1])
    return Verdict(
        score=clustering_score(metric, vectors, labels),
        nulls=tuple(clustering_score(metric, v, each) for v, each in nulls),
        clean=clean_score,
        retention=retention,
        chance=chance,
        clients=len(vectors),
        higher_is_better=metric != "davies_bouldin",
    )
