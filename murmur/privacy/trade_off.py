"""Auditing under the assumption of a Gaussian trade-off: far larger ε are seen in few runs.

A mechanism is μ-GDP when telling two neighbours apart is no easier than telling N(0, 1) from
N(μ, 1) (Dong, Roth and Su 2022). Any threshold's error rates then bound μ from below:

    μ ≥ Φ⁻¹(1 − FPR) − Φ⁻¹(FNR)

(Nasr et al., "Tight auditing of differentially private machine learning", USENIX Security 2023).
Where counting events shows ε up to about ln(runs), this shows more; but the ε is that of a Gaussian
with this μ, which is a bound for the mechanism only where its trade-off is Gaussian.

Where the outputs themselves are normal with one variance, as those of added Gaussian noise are, the
distance of their means shows a μ of any size.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri, ndtri, stdtrit

from murmur.privacy.accounting.gaussian import epsilon_of_mu
from murmur.privacy.audit import clopper_pearson

_THRESHOLDS = 64  # tried on a quarter of the runs


def gaussian_fit(
    outputs_x: ArrayLike,
    outputs_x_prime: ArrayLike,
    delta: float,
    confidence: float = 0.999,
) -> float:
    """ε at ``delta`` of the Gaussian whose μ the runs prove with ``confidence``; 0 if none.

    Args:
        outputs_x: one real number per independent run on x, shape (n,), as for ``audit``.
        outputs_x_prime: the same for the neighbour x', shape (m,).
        delta: the δ of the claim, in (0, 1).
        confidence: of μ's bound: two Clopper–Pearson bounds, each with half of the error. The
            threshold is chosen on a quarter of the runs, the others measure.
    """
    require_delta(delta)
    x, other = _floats(outputs_x, outputs_x_prime)
    if x[0::4].mean() < other[0::4].mean():
        x = -x
        other = -other
    error = (1 - confidence) / 2
    tried = (x[0::4], other[0::4])
    left = [np.delete(outputs, np.s_[0::4]) for outputs in (x, other)]
    thresholds = np.unique(np.quantile(np.concatenate(tried), np.linspace(0, 1, _THRESHOLDS)[1:-1]))
    threshold = max(thresholds, key=lambda at: _least_mu(*tried, at, error))
    return epsilon_of_mu(_least_mu(left[0], left[1], float(threshold), error), delta)


def normal_fit(
    outputs_x: ArrayLike,
    outputs_x_prime: ArrayLike,
    delta: float,
    confidence: float = 0.999,
) -> float:
    """ε at ``delta`` of two normal laws of one variance, by their moments; 0 if none is shown.

    μ is the distance of the means in standard deviations. Student's bound on the former, over the
    differences of pairs of outputs, and the χ² bound on the latter, each with half of the error,
    are exact for normal outputs. Where both of a pair come from the same noise, their differences
    vary less, or not at all, and the bound is closer.

    Args:
        outputs_x: one real number per independent run on x, shape (n,), as for ``audit``.
        outputs_x_prime: the same for the neighbour x', shape (n,); independent of each other, but
            the i-th may share its noise with the i-th of ``outputs_x``.
        delta: the δ of the claim, in (0, 1).
        confidence: of the bound.
    """
    require_delta(delta)
    x, other = _floats(outputs_x, outputs_x_prime)
    gaps = x - other
    freedom = x.size - 1
    error = (1 - confidence) / 2
    # Two-sided, for the sign of the distance is taken from the same runs.
    margin = float(stdtrit(freedom, 1 - error / 2)) * float(gaps.std()) / math.sqrt(freedom)
    least = abs(float(gaps.mean())) - margin
    squares = x.size * float(x.var())
    if squares == 0:
        return math.inf if least > 0 else 0.0
    return epsilon_of_mu(least / math.sqrt(squares / float(chdtri(freedom, 1 - error))), delta)


def normal_interval(
    outputs_x: ArrayLike,
    outputs_x_prime: ArrayLike,
    delta: float,
    confidence: float = 0.999,
) -> tuple[float, float, float]:
    """ε of the same two laws, at least, as estimated and at most; arguments as for ``normal_fit``.

    The estimate is that of Andrew et al., "One-shot empirical privacy estimation for federated
    learning", ICLR 2024, where the outputs are the scores of canaries in and out of one run.
    """
    require_delta(delta)
    x, other = _floats(outputs_x, outputs_x_prime)
    # A third of the error for the means' distance, and for either bound on the variance.
    error = (1 - confidence) / 3
    freedom = x.size + other.size - 2
    squares = x.size * float(x.var()) + other.size * float(other.var())
    gap = abs(float(x.mean() - other.mean()))
    if squares == 0:
        epsilon = math.inf if gap else 0.0
        return epsilon, epsilon, epsilon
    deviation = math.sqrt(squares / freedom)
    # Two-sided, for the sign of the distance is taken from the same runs.
    student = float(stdtrit(freedom, 1 - error / 2))
    margin = student * deviation * math.sqrt(1 / x.size + 1 / other.size)
    least = (gap - margin) / math.sqrt(squares / float(chdtri(freedom, 1 - error)))
    most = (gap + margin) / math.sqrt(squares / float(chdtri(freedom, error)))
    return (
        epsilon_of_mu(least, delta),
        epsilon_of_mu(gap / deviation, delta),
        epsilon_of_mu(most, delta),
    )


def _floats(
    outputs_x: ArrayLike, outputs_x_prime: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.asarray(outputs_x, np.float64), np.asarray(outputs_x_prime, np.float64)


def require_delta(delta: float) -> None:
    """ValueError unless a Gaussian has an ε at ``delta``."""
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta}: must lie in (0, 1); a Gaussian has no ε at δ = 0")


def _least_mu(
    x: NDArray[np.float64], other: NDArray[np.float64], threshold: float, error: float
) -> float:
    """What "x, where the output is at least ``threshold``" proves of μ; -inf if nothing.

    Both error rates are bounded from above, each wrongly with probability ``error``.
    """
    misses = clopper_pearson(np.array([np.sum(x < threshold)]), len(x), error)[1][0]
    alarms = clopper_pearson(np.array([np.sum(other >= threshold)]), len(other), error)[1][0]
    return float(ndtri(1 - alarms) - ndtri(misses))
