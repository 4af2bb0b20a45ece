"""Empirical lower bounds on ε: what a distinguisher achieves against a mechanism that ran.

A bound above what was proven shows a broken mechanism or a broken proof. Three ways, which rest on
more and more:

**Many runs, events counted** (``empirical_epsilon``). An (ε, δ)-DP mechanism gives every event E
P(E | x) ≤ e^ε P(E | x') + δ. So any event, with confidence bounds on its two probabilities, proves
ε ≥ ln((P_low(E | x) − δ) / P_high(E | x')) (Jagielski, Ullman and Oprea 2020; Ding et al. 2018).
The events tried here are the likelihood ratio's: half of the runs choose the event, the other half,
which the choice has not seen, measure it. Where ε is large, an event that is common on both shows
more at a large δ than a rare one does at a small δ: what refutes a claim is looked for at several δ
(``empirical_profile``). Nothing is assumed of the outputs, so only this accuses a mechanism.

**Many runs, a Gaussian trade-off** (``gaussian_fit``). A mechanism is μ-GDP when telling two
neighbours apart is no easier than telling N(0, 1) from N(μ, 1) (Dong, Roth and Su 2022). Any
threshold's error rates then estimate μ = Φ⁻¹(1 − FPR) − Φ⁻¹(FNR) (Nasr et al., "Tight auditing of
differentially private machine learning", USENIX Security 2023). Where counting events shows ε up to
about ln(runs), this shows more; but the ε is that of a Gaussian with this μ, which is the
mechanism's only where its trade-off is Gaussian. Where the outputs themselves are normal with one
variance, as those of added Gaussian noise are, the distance of their means shows a μ of any size
(``normal_fit``). Both are estimates with an interval (``Interval``), and accuse nobody.

**One run** (``CanaryAudit``): many canaries, each in or out by a fair coin. An adversary who
guesses r of m coins, v of them rightly, is limited by the mechanism's privacy, even though all
canaries share the run. ``one_run``: of an (ε, δ)-DP mechanism at most

    P[v or more right] ≤ β + 2mδ max_i α_i/i,   β = P[Bin(r, e^ε/(1 + e^ε)) ≥ v],
    α_i = P[v > Bin(r, e^ε/(1 + e^ε)) ≥ v − i]

(Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023, theorem
5.2). ``one_run_gaussian``: of a μ-GDP mechanism far more is known (Mahloujifar, Melis and
Chaudhuri, "Auditing f-differential privacy in one run", 2024, algorithm 3).

``success`` is what attacks report instead where there are no neighbouring runs: how well their
scores tell two groups apart.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy  # which loads its special functions when one is used: they are slow to load
from numpy.typing import ArrayLike, NDArray

from murmur.checks import require_probability
from murmur.privacy.accounting.gaussian import epsilon_of_mu
from murmur.privacy.search import decreasing_root

# Bins of the outputs: each value is one if they are no more, else quantiles.
_MAX_SYMBOLS = 512
FEW_ALARMS = 1e-3  # the share of false alarms at which ``Success.hits`` counts
_THRESHOLDS = 64  # tried on a quarter of the runs
_SHARES = (1, 2, 4, 8)  # all, or the surest half, quarter or eighth of the canaries are guessed
CONFIDENCE = 0.999  # of every figure, unless another is asked for
MIN_CANARIES = 2 * _SHARES[-1]  # so that an eighth of them still holds one guess for either side
_MAX_EPSILON = 1e3  # ε and μ are looked for up to here
# Beside a claim's own δ: where events are common on both inputs, and so few runs measure them.
PROFILE = (1e-3, 1e-2, 0.1, 0.3, 0.5, 0.7, 0.9)


class Interval(NamedTuple):
    """An estimate, and the ends between which the truth lies with the confidence asked for."""

    low: float
    estimate: float
    high: float


def empirical_epsilon(
    outputs_x: ArrayLike,
    outputs_x_prime: ArrayLike,
    delta: float = 0.0,
    confidence: float = 0.999,
) -> float:
    """A lower bound on ε by runs on two neighbouring inputs, 0 if they show none.

    It holds with probability ``confidence``, over the randomness of the runs.

    Args:
        outputs_x: one real number per independent run on x, shape (n,). Reduce a vector to the
            number that separates x from x' best, such as its inner product with x − x', by a
            rule that does not depend on these outputs: post-processing never raises ε.
        outputs_x_prime: the same for the neighbour x', shape (m,).
        delta: the δ of the claim, 0 for pure DP.
        confidence: of the bound, in (0, 1): two one-sided Clopper–Pearson bounds, each with
            half of the allowed error.

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
    likely, unlikely = measuring
    if swapped:
        unlikely, likely = measuring
    error = (1 - confidence) / 2
    low = clopper_pearson(np.array([likely[event].sum()]), int(likely.sum()), error)[0]
    high = clopper_pearson(np.array([unlikely[event].sum()]), int(unlikely.sum()), error)[1]
    return max(0.0, float(_epsilon(low, high, delta)[0]))


def empirical_profile(
    outputs_x: ArrayLike,
    outputs_x_prime: ArrayLike,
    delta: float = 0.0,
    confidence: float = 0.999,
) -> dict[float, float]:
    """Lower bounds on ε, by δ: at ``delta``, and at each of ``PROFILE``.

    They hold all together with probability ``confidence``, whatever the outputs' law. Half of the
    error is that of ``delta``. Arguments and errors as for ``empirical_epsilon``.
    """
    others = [each for each in PROFILE if each != delta]
    half = (1 - confidence) / 2
    found = {delta: empirical_epsilon(outputs_x, outputs_x_prime, delta, 1 - half)}
    for each in others:
        share = 1 - half / len(others)
        found[each] = empirical_epsilon(outputs_x, outputs_x_prime, each, share)
    return found


def refuted_at(profile: Mapping[float, float], proven: Callable[[float], float]) -> float | None:
    """The first δ of ``profile`` at which ``proven`` says less than was counted; None: at none.

    ``proven``: ε by δ, of the same releases and neighbours.
    """
    for delta, counted in profile.items():
        if counted > 0 and counted > proven(delta):
            return delta
    return None


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
    successes = np.asarray(successes, dtype=np.float64)
    failures = trials - successes
    # At the ends the quantile has no argument: a bound of 0 or 1 is the exact one there.
    low = scipy.special.betaincinv(np.maximum(successes, 1), failures + 1, error)
    high = scipy.special.betaincinv(successes + 1, np.maximum(failures, 1), 1 - error)
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
    if distinct.size <= _MAX_SYMBOLS:
        return distinct
    quantiles = np.linspace(0, 1, _MAX_SYMBOLS, endpoint=False)
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


def gaussian_fit(
    outputs_x: ArrayLike,
    outputs_x_prime: ArrayLike,
    delta: float,
    confidence: float = 0.999,
) -> Interval:
    """ε at ``delta`` of the Gaussian whose error rates a threshold has; 0 to ∞ if it shows nothing.

    Args:
        outputs_x: as for ``empirical_epsilon``, shape (n,).
        outputs_x_prime: the same for the neighbour x', shape (m,).
        delta: the δ of the claim, in (0, 1).
        confidence: of μ's interval: four Clopper–Pearson bounds, each with a quarter of the error.
            The threshold is chosen on a quarter of the runs, the others measure.
    """
    require_delta(delta)
    x, other = _floats(outputs_x, outputs_x_prime)
    if x[0::4].mean() < other[0::4].mean():
        x = -x
        other = -other
    error = (1 - confidence) / 4
    tried = (x[0::4], other[0::4])
    left = [np.delete(outputs, np.s_[0::4]) for outputs in (x, other)]
    thresholds = np.unique(np.quantile(np.concatenate(tried), np.linspace(0, 1, _THRESHOLDS)[1:-1]))
    threshold = max(thresholds, key=lambda at: _mu_of_rates(*tried, at, error).low)
    return _of_mu(_mu_of_rates(left[0], left[1], float(threshold), error), delta)


def normal_fit(
    outputs_x: ArrayLike,
    outputs_x_prime: ArrayLike,
    delta: float,
    confidence: float = 0.999,
    shared: bool = False,
) -> Interval:
    """ε at ``delta`` of two normal laws of one variance, by their moments.

    μ is the distance of the means in standard deviations. Student's bounds on the former and the χ²
    bounds on the latter are exact for normal outputs; a third of the error each. The estimate is
    that of Andrew et al., "One-shot empirical privacy estimation for federated learning", ICLR
    2024, where the outputs are the scores of canaries in and out of one run.

    Args:
        outputs_x: as for ``empirical_epsilon``, shape (n,).
        outputs_x_prime: the same for the neighbour x', shape (m,).
        delta: the δ of the claim, in (0, 1).
        confidence: of the interval.
        shared: whether the i-th of both come from the same noise, n = m. Their differences then
            vary less, or not at all, and the interval is closer.
    """
    require_delta(delta)
    x, other = _floats(outputs_x, outputs_x_prime)
    error = (1 - confidence) / 3
    squares = x.size * float(x.var())
    freedom = x.size - 1
    if shared:
        gap_deviation = float((x - other).std()) / math.sqrt(freedom)
    else:
        squares += other.size * float(other.var())
        freedom += other.size - 1
        gap_deviation = math.sqrt(squares / freedom * (1 / x.size + 1 / other.size))
    gap = abs(float(x.mean() - other.mean()))
    if squares == 0:
        epsilon = math.inf if gap else 0.0
        return Interval(epsilon, epsilon, epsilon)
    # Two-sided, for the sign of the distance is taken from the same runs.
    margin = float(scipy.special.stdtrit(freedom, 1 - error / 2)) * gap_deviation
    least = (gap - margin) / math.sqrt(squares / float(scipy.special.chdtri(freedom, 1 - error)))
    most = (gap + margin) / math.sqrt(squares / float(scipy.special.chdtri(freedom, error)))
    return _of_mu(Interval(least, gap / math.sqrt(squares / freedom), most), delta)


def _of_mu(mu: Interval, delta: float) -> Interval:
    """ε at ``delta`` of Gaussians, by their μ."""
    return Interval(*(epsilon_of_mu(each, delta) for each in mu))


def _floats(
    outputs_x: ArrayLike, outputs_x_prime: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.asarray(outputs_x, np.float64), np.asarray(outputs_x_prime, np.float64)


def require_delta(delta: float) -> None:
    """ValueError unless a Gaussian has an ε at ``delta``."""
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta}: must lie in (0, 1); a Gaussian has no ε at δ = 0")


def _mu_of_rates(
    x: NDArray[np.float64], other: NDArray[np.float64], threshold: float, error: float
) -> Interval:
    """μ by the error rates of "x, where the output is at least ``threshold``".

    Both rates are bounded from above and from below, each wrongly with probability ``error``.
    """
    rates = []
    for wrong in (x < threshold, other >= threshold):
        count = np.array([np.sum(wrong)])
        low, high = clopper_pearson(count, len(wrong), error)
        rates.append((high[0], (count[0] + 0.5) / (len(wrong) + 1), low[0]))
    misses, alarms = np.array(rates)
    return Interval(*(scipy.special.ndtri(1 - alarms) - scipy.special.ndtri(misses)).tolist())


@dataclass(frozen=True)
class CanaryAudit:
    """Audit by canary clients of the ε of all that a client released in the run.

    A canary is in the run or out of it (or does one thing or its opposite) by a fair coin of its
    own, and its score is how much of it the adversary sees. Confidence ``CONFIDENCE`` each.

    ``count``: canaries. ``at_least``: proven by their coins alone. ``if_gaussian``: the same where
    what is proven is a Gaussian's ε, else None. Of Gaussian noise, or nearly so, else None:
    ``estimate``, in ``low`` to ``high``, where scores are normal. All three are of the same run,
    and rest on more and more.
    """

    count: int
    at_least: float
    if_gaussian: float | None = None
    estimate: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def least(self) -> float:
        """The larger lower bound by the coins: whatever scores look like, it refutes a claim."""
        return max(self.at_least, self.if_gaussian or 0.0)

    @classmethod
    def of(
        cls,
        scores: ArrayLike,
        inside: ArrayLike,
        delta: float,
        is_gaussian: bool = True,
        exactly: bool = True,
    ) -> "CanaryAudit":
        """From the m canaries' ``scores`` and coins, (m,) each, at ``delta`` above 0.

        ``is_gaussian``: whether the noise is, or nearly so. ``exactly``: whether it is nothing
        else, so that what is proven is a Gaussian's ε, which the coins alone can refute.
        """
        values = np.asarray(scores, np.float64)
        coins = np.asarray(inside, np.bool_)
        proven = one_run(values, coins, delta, CONFIDENCE)
        if not is_gaussian:
            return cls(len(values), proven)
        low, estimate, high = normal_fit(values[coins], values[~coins], delta, CONFIDENCE)
        gaussian = None
        if exactly:
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
    beta = float(scipy.special.bdtrc(right - 1, guesses, each))
    if not delta:
        return beta
    fewer = np.arange(1, right + 1)
    tails = scipy.special.bdtrc(right - fewer - 1.0, guesses, each)
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
        higher = max(h, float(scipy.special.ndtr(scipy.special.ndtri(r) - mu)))
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
    if values.ndim != 1 or values.shape != coins.shape or len(values) < MIN_CANARIES:
        raise ValueError(
            f"scores {values.shape}, inside {coins.shape}: must be one of each for "
            f"{MIN_CANARIES} canaries or more"
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
            found = decreasing_root(refuted, found, _MAX_EPSILON, relative=1e-9)
    return found
