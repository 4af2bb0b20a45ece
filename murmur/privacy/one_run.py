"""Auditing in one run: many canaries, each in or out by a fair coin, and guesses of which.

An adversary who guesses r of m coins, v of them rightly, is limited by the mechanism's privacy,
even though all canaries share one run. ``one_run``: of an (ε, δ)-DP mechanism at most

    P[v or more right] ≤ β + 2mδ max_i α_i/i,   β = P[Bin(r, e^ε/(1 + e^ε)) ≥ v],
    α_i = P[v > Bin(r, e^ε/(1 + e^ε)) ≥ v − i]

(Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023, theorem
5.2). ``one_run_gaussian``: of a μ-GDP mechanism far more is known (Mahloujifar, Melis and
Chaudhuri, "Auditing f-differential privacy in one run", 2024, algorithm 3), whose ε is a bound for
a mechanism only where its trade-off is Gaussian. ``CanaryAudit`` holds both beside what normal
scores show (``murmur.privacy.trade_off.normal_interval``), three estimates of the same run that
rest on more and more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtrc, ndtr, ndtri

from murmur.common import require_probability
from murmur.privacy.accounting.gaussian import epsilon_of_mu
from murmur.privacy.search import decreasing_root
from murmur.privacy.trade_off import normal_interval, require_delta

_SHARES = (1, 2, 4, 8)  # all, or the surest half, quarter or eighth of the canaries are guessed
CONFIDENCE = 0.999
"""Of every figure in a ``CanaryAudit``."""
LEAST_CANARIES = 2 * _SHARES[-1]
"""So many canaries that an eighth of them still holds one guess for either side."""
_MOST = 1e3  # ε and μ are looked for up to here


@dataclass(frozen=True)
class CanaryAudit:
    """What canary clients show of the ε of all that a client released in the run.

    A canary is in the run or out of it (or does one thing or its opposite) by a fair coin of its
    own, and its score is how much of it the adversary sees. Confidence ``CONFIDENCE`` each.

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
        values = np.asarray(scores, np.float64)
        coins = np.asarray(inside, np.bool_)
        proven = one_run(values, coins, delta, CONFIDENCE)
        if not is_gaussian:
            return cls(len(values), proven)
        low, estimate, high = normal_interval(values[coins], values[~coins], delta, CONFIDENCE)
        gaussian = one_run_gaussian(values, coins, delta, CONFIDENCE)
        return cls(len(values), proven, gaussian, estimate, low, high)


def one_run(
    scores: ArrayLike, inside: ArrayLike, delta: float = 0.0, confidence: float = 0.999
) -> float:
    """ε at ``delta`` that one run proves with ``confidence``, by the coins alone; 0 if none.

    Args:
        scores: of the m canaries, larger for those that seem to be in, (m,).
        inside: the coins, (m,), fair and independent.
        delta: the δ of the claim, in [0, 1).
        confidence: of the bound; its error is shared by four numbers of guesses.
    """
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta}: must lie in [0, 1)")

    def excess(m: int, guesses: int, right: int, epsilon: float, error: float) -> float:
        return error - p_value(m, guesses, right, epsilon, delta)

    return _largest(scores, inside, confidence, excess)


def one_run_gaussian(
    scores: ArrayLike, inside: ArrayLike, delta: float, confidence: float = 0.999
) -> float:
    """ε at ``delta`` of the Gaussian whose μ one run proves; arguments as for ``one_run``."""
    require_delta(delta)
    return epsilon_of_mu(_largest(scores, inside, confidence, _gaussian_excess), delta)


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """How probable so many ``right`` ones of ``guesses`` are at most, of an (ε, δ)-DP mechanism."""
    each = 1 / (1 + math.exp(-epsilon))
    if not right:
        return 1.0
    beta = float(bdtrc(right - 1, guesses, each))
    if not delta:
        return beta
    fewer = np.arange(1, right + 1)
    tails = bdtrc(right - fewer - 1.0, guesses, each)
    tails[-1] = 1.0  # P[Bin ≥ 0]
    return min(1.0, beta + 2 * canaries * delta * float(np.max((tails - beta) / fewer)))


def _gaussian_excess(m: int, guesses: int, right: int, mu: float, error: float) -> float:
    """Above 0 where no μ-GDP mechanism lets so many guesses be right with probability ``error``.

    ``m`` canaries; r and h are the algorithm's own names for the chances of a right guess and of a
    wrong one, jointly with that many right ones.
    """
    r = error * right / m
    h = error * (guesses - right) / m
    for i in range(right - 1, -1, -1):
        higher = max(h, float(ndtr(ndtri(r) - mu)))
        if higher == h:
            break  # neither changes any more
        r = min(1.0, r + i / (guesses - i) * (higher - h))
        h = higher
    return r + h - guesses / m


def _largest(
    scores: ArrayLike,
    inside: ArrayLike,
    confidence: float,
    excess: Callable[[int, int, int, float, float], float],
) -> float:
    """The largest parameter that is refuted by the guesses on any share of the canaries.

    ``excess(canaries, guesses, right, parameter, error)``: above 0 where so many right guesses
    refute ``parameter`` (ε or μ), each share at its part of the error.
    """
    values = np.asarray(scores, np.float64)
    coins = np.asarray(inside, np.bool_)
    if values.ndim != 1 or values.shape != coins.shape or len(values) < LEAST_CANARIES:
        raise ValueError(
            f"scores {values.shape}, inside {coins.shape}: must be one of each for "
            f"{LEAST_CANARIES} canaries or more"
        )
    if np.isnan(values).any():
        raise ValueError("scores: hold NaN")
    require_probability("confidence", confidence)
    m = len(values)
    order = np.argsort(values, kind="stable")
    error = (1 - confidence) / len(_SHARES)
    found = 0.0
    for share in _SHARES:
        side = m // (2 * share)
        right = int((~coins[order[:side]]).sum() + coins[order[m - side :]].sum())

        def refuted(parameter: float, guesses: int = 2 * side, right: int = right) -> float:
            return excess(m, guesses, right, parameter, error)

        if refuted(found) > 0:
            found = decreasing_root(refuted, found, _MOST, relative=1e-9)
    return found
