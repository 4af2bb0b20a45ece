"""Empirical lower bounds on ε: what a distinguisher achieves against a mechanism that ran.

An (ε, δ)-DP mechanism gives every event E P(E | x) ≤ e^ε P(E | x') + δ. So any event, with
confidence bounds on its two probabilities, proves ε ≥ ln((P_low(E | x) − δ) / P_high(E | x'))
(Jagielski, Ullman and Oprea 2020; Ding et al. 2018). The events tried here are the likelihood
ratio's: half of the runs choose the event, the other half, which the choice has not seen, measure
it. A bound above what was proven shows a broken mechanism or a broken proof.

``success`` is what attacks report instead where there are no neighbouring runs: how well their
scores tell two groups apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from murmur.common import require_probability

# Bins of the outputs: each value is one if they are no more, else quantiles.
_MOST_SYMBOLS = 512
FEW_ALARMS = 1e-3
"""The share of false alarms at which ``Success.hits`` counts."""


@dataclass(frozen=True)
class Audit:
    """The outcome of an audit.

    Attributes:
        epsilon: with probability ``confidence`` the true ε at ``delta`` is at least this; 0 if
            nothing was found.
        delta: the δ that was granted.
        confidence: of the bound, over the randomness of the runs.
        hits: runs on x and on x' in which the chosen event happened.
        runs: runs on x and on x' that measured it (half of those given).
        swapped: the event is likelier under x'.
    """

    epsilon: float
    delta: float
    confidence: float
    hits: tuple[int, int]
    runs: tuple[int, int]
    swapped: bool


def empirical_epsilon(
    outputs_x: ArrayLike,
    outputs_x_prime: ArrayLike,
    delta: float = 0.0,
    confidence: float = 0.999,
) -> float:
    """A lower bound on ε that holds with probability ``confidence``; see ``audit``."""
    return audit(outputs_x, outputs_x_prime, delta, confidence).epsilon


def audit(
    outputs_x: ArrayLike,
    outputs_x_prime: ArrayLike,
    delta: float = 0.0,
    confidence: float = 0.999,
) -> Audit:
    """Bound ε from below by runs on two neighbouring inputs.

    Args:
        outputs_x: one real number per independent run on x, shape (n,). Reduce a vector to the
            number that separates x from x' best, such as its inner product with x − x', by a
            rule that does not depend on these outputs: post-processing never raises ε.
        outputs_x_prime: the same for the neighbour x', shape (m,).
        delta: the δ of the claim, 0 for pure DP.
        confidence: of the bound, in (0, 1): two one-sided Clopper–Pearson bounds, each with
            half of the allowed error.

    Returns:
        The bound, and what it rests on.

    Raises:
        ValueError: fewer than 4 runs on a side, another shape, NaN, or ``delta`` or
            ``confidence`` out of range.
    """
    x = _outputs("outputs_x", outputs_x)
    x_prime = _outputs("outputs_x_prime", outputs_x_prime)
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta}: must lie in [0, 1)")
    require_probability("confidence", confidence)
    # A quarter of the runs orders the bins, another cuts the order: an order cut by the runs
    # that made it would prefer what is likely by chance.
    edges = _edges(x[0::4], x_prime[0::4])
    ordering, cutting, measuring = (
        (_counts(x[part], edges), _counts(x_prime[part], edges))
        for part in (np.s_[0::4], np.s_[2::4], np.s_[1::2])
    )
    event, swapped = _best_event(ordering, cutting, delta, confidence)
    hits = tuple(int(counts[event].sum()) for counts in measuring)
    runs = tuple(int(counts.sum()) for counts in measuring)
    likely = int(swapped)  # 0 for x, 1 for x'
    unlikely = 1 - likely
    error = (1 - confidence) / 2
    low = clopper_pearson(np.array([hits[likely]]), runs[likely], error)[0]
    high = clopper_pearson(np.array([hits[unlikely]]), runs[unlikely], error)[1]
    return Audit(
        epsilon=max(0.0, float(_epsilon(low, high, delta)[0])),
        delta=delta,
        confidence=confidence,
        hits=(hits[0], hits[1]),
        runs=(runs[0], runs[1]),
        swapped=swapped,
    )


def clopper_pearson(
    successes: NDArray[Any], trials: int, error: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One-sided confidence bounds on a probability, each wrong with probability ≤ ``error``.

    Clopper and Pearson (1934), the exact ones.

    Args:
        successes: numbers of successes, shape (k,).
        trials: number of trials.
        error: of either bound by itself.

    Returns:
        Lower and upper bounds, shape (k,) each.
    """
    # Needs SciPy's special functions, which cost a tenth of a second to import.
    from scipy.special import betaincinv

    successes = np.asarray(successes, dtype=np.float64)
    failures = trials - successes
    # At the ends the quantile has no argument: a bound of 0 or 1 is the exact one there.
    low = betaincinv(np.maximum(successes, 1), failures + 1, error)
    high = betaincinv(successes + 1, np.maximum(failures, 1), 1 - error)
    return np.where(successes > 0, low, 0.0), np.where(failures > 0, high, 1.0)


def _outputs(name: str, outputs: ArrayLike) -> NDArray[np.float64]:
    """``outputs`` as an array (n,); ValueError, by ``name``, where they cannot be measured."""
    values = np.asarray(outputs, dtype=np.float64)
    if values.ndim != 1 or values.size < 4:
        raise ValueError(
            f"{name} of shape {values.shape}: must hold one number for each of 4 runs or more"
        )
    if np.isnan(values).any():
        raise ValueError(f"{name}: holds NaN")
    return values


def _edges(x: NDArray[np.float64], x_prime: NDArray[np.float64]) -> NDArray[np.float64]:
    """Left ends of the bins: the values themselves if they are few, else quantiles."""
    values = np.concatenate([x, x_prime])
    distinct = np.unique(values)
    if distinct.size <= _MOST_SYMBOLS:
        return distinct
    quantiles = np.linspace(0, 1, _MOST_SYMBOLS, endpoint=False)
    return np.unique(np.quantile(values, quantiles, method="higher"))


def _counts(values: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many values fall into each bin; what lies below the first edge goes to the first."""
    bins = np.maximum(np.searchsorted(edges, values, side="right") - 1, 0)
    return np.bincount(bins, minlength=len(edges)).astype(np.int64)


def _best_event(
    ordering: tuple[NDArray[np.int64], NDArray[np.int64]],
    cutting: tuple[NDArray[np.int64], NDArray[np.int64]],
    delta: float,
    confidence: float,
) -> tuple[NDArray[np.intp], bool]:
    """The bins of the event that promises the largest ε, and whether x' makes it likelier.

    ``ordering`` and ``cutting``: counts by bin on x and on x', shape (bins,) each. The first give
    four orders of the bins, the second say after which bin to cut one.
    """
    # By the estimated likelihood ratio, smoothed by half a run, and by the output itself: the
    # latter is the true order of most noise, and needs no estimate in the tails.
    ratio = (ordering[0] + 0.5) / (ordering[1] + 0.5)
    by_ratio = np.argsort(-ratio, kind="stable")
    by_value = np.arange(ratio.size)
    # A union bound over orders, sides and bins: chance must not make a rare event win.
    error = (1 - confidence) / (8 * ratio.size)
    best = -math.inf
    event = by_value
    swapped = False
    for order in (by_ratio, by_ratio[::-1], by_value, by_value[::-1]):
        bounds = [
            clopper_pearson(np.cumsum(counts[order]), int(counts.sum()), error)
            for counts in cutting
        ]
        for likely in (0, 1):
            epsilons = _epsilon(bounds[likely][0], bounds[1 - likely][1], delta)
            last = int(np.argmax(epsilons))
            if epsilons[last] > best:
                best = float(epsilons[last])
                event = order[: last + 1]
                swapped = likely == 1
    return event, swapped


def _epsilon(
    low: NDArray[np.float64], high: NDArray[np.float64], delta: float
) -> NDArray[np.float64]:
    """ln((low − δ)/high); −∞ where the event proves nothing."""
    excess = np.maximum(low - delta, 0)
    with np.errstate(divide="ignore"):
        return np.log(excess) - np.log(high)


@dataclass(frozen=True)
class Success:
    """How well an attack's scores tell two groups apart.

    ``auc``: area under the ROC curve, 0.5 is chance. ``hits``: true positives where ``FEW_ALARMS``
    of the others alarm, which is what counts for the one who is hit (Carlini et al., "Membership
    inference attacks from first principles", IEEE S&P 2022); chance is ``FEW_ALARMS``.
    """

    auc: float
    hits: float


def success(positives: ArrayLike, negatives: ArrayLike) -> Success:
    """Of scores that should be larger for ``positives`` (n,) than for ``negatives`` (m,).

    Raises:
        ValueError: a group is empty, or a score is NaN.
    """
    yes = np.asarray(positives, np.float64).ravel()
    no = np.sort(np.asarray(negatives, np.float64).ravel())
    if not (yes.size and no.size):
        raise ValueError("scores: both groups need at least one")
    if np.isnan(yes).any() or np.isnan(no).any():
        raise ValueError("scores: hold NaN")
    # The share of pairs in the right order, ties for half (Mann and Whitney 1947).
    below = np.searchsorted(no, yes, side="left").sum()
    not_above = np.searchsorted(no, yes, side="right").sum()
    auc = (below + not_above) / (2 * yes.size * no.size)
    threshold = no[::-1][int(FEW_ALARMS * no.size)]
    return Success(float(auc), float(np.mean(yes > threshold)))
