"""Gaussian noise: continuous, discrete on a fine grid, and discrete in sums over clients.

Continuous noise. n releases with noise multipliers m_i (σ / L2 sensitivity) are, exactly, one
release with 1/m² = Σ 1/m_i²: L equal ones have sensitivity Δ√L (Dong, Roth, Su 2022, corollary
3.3). Ours, since dp-accounting's ``get_epsilon_gaussian`` agrees to 12 digits, but takes 4 times as
long, and importing it takes a run 0.7 s of processor time, a tenth of a short run.

A fine grid. Rounding a Gaussian to whole numbers is post-processing: with an integer vector k,
round(k + σZ) = k + round(σZ) is a function of k + σZ. So round(σZ) is as private as the Gaussian,
and the discrete Gaussian's probabilities differ from those of round(σZ) by a factor near 1. For one
coordinate x, with u uniform on ±½,

    ln P(round(σZ) = x) − ln φ_σ(x) = ln E[cosh(xu/σ²) e^(−u²/2σ²)].

The first factor rises with u² and the second falls (Chebyshev); with sinh(a)/a ≤ e^(a²/6) and
Hoeffding's lemma it is at most (x²/σ² − 1)/24σ² + 1/512σ⁴. By Jensen and ln cosh a ≥ a²/2 − a⁴/12
it is at least (x²/σ² − 1)/24σ² − x⁴/960σ⁸. The discrete Gaussian's normalising sum is that of φ_σ
up to e^(−2π²σ²) (Poisson). In d coordinates with S = Σx²/σ² the logarithms differ by at most

    η = |S − d|/24σ² + d/512σ⁴ + S²/960σ⁴,   |S − d| ≤ 2√(dt) + 2t but for probability 2e^−t,

since S has the moments of a χ² under both (Laurent and Massart 2000, lemma 1). Two shifted copies
therefore satisfy δ(ε) ≤ e^η δ_Gauss(ε − 2η) + 2e^−t (1 + e^ε), and η adds up over releases.

Sums. Over h clients whose noise is N_Z(0, σ₁²) each, one coordinate of the sum is not a discrete
Gaussian, but its law is within e^±τ of N_Z(0, hσ₁²)'s, for σ₁ ≥ ½, with

    τ = 10 Σ_{k=1}^{h−1} exp(−2π²σ₁² k/(k+1))

(Kairouz, Liu, Steinke, "The distributed discrete Gaussian mechanism for federated learning with
secure aggregation", ICML 2021, arXiv 2102.06387). From σ₁ = 4 on that is below h·10⁻⁶⁷: over 2²⁶
coordinates of a million releases no float shows it. Below, a coordinate's exact law is the h-fold
convolution (``elementary_losses``). dp-accounting knows neither sums nor weights.
"""

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from murmur.privacy import events
from murmur.privacy.search import decreasing_root

Floats = NDArray[np.float64]

MIN_CONTINUOUS_SIGMA = 2.0**16
"""The least σ, in grid steps, from which on discrete noise counts as continuous."""
MIN_CLIENT_SIGMA = 4.0
"""The least σ₁ of one client, in grid steps, from which on a sum counts as a discrete Gaussian."""

_TAIL = 20_000.0  # t above
# Up to here e^(ε − t) is nothing beside any δ that floats can hold.
MAX_EPSILON = 10_000.0
"""The largest ε for which fine noise counts as continuous."""

# e to more than this overflows. So exact are differences of tails, relative to the larger one.
_MAX_EXPONENT = 700.0
_ROUNDED = 1e-11

# Points of a law of a sum, and standard deviations that it covers: beyond is a mass below 1e-105,
# which no float δ shows. Convolutions are direct, so that tails keep their digits: a wide law would
# take long.
_MAX_LATTICE_POINTS = 2048
REACH = 22.0
# Shifts beyond so many standard deviations (an ε above 50) are left to what one client adds.
_FAR = 10.0


def log_delta(epsilon: Floats | float, mu: float) -> Floats:
    """Logarithm of δ(ε) of one Gaussian, L2 sensitivity / σ = ``mu``; ε may be negative.

    Balle & Wang 2018, theorem 8: δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ). Shape of ``epsilon``. In
    logarithms, for any δ that a float can hold; −inf where none can.
    """
    from scipy.special import log_ndtr  # here, since ``costs_at_most`` does without SciPy

    epsilon = np.asarray(epsilon, dtype=np.float64)
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    with np.errstate(invalid="ignore"):
        gap = first + log1mexp(np.minimum(second - first, 0.0))
    return np.where(np.isneginf(first), -np.inf, gap)


def log1mexp(x: Floats) -> Floats:
    """ln(1 − e^x) for x ≤ 0, elementwise, with all its digits."""
    with np.errstate(divide="ignore"):
        return np.where(x > -0.7, np.log(-np.expm1(x)), np.log1p(-np.exp(x)))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Exact ε at ``delta`` in (0, 1) of one Gaussian of sensitivity / σ = ``mu``, rounded up.

    0 for a ``mu`` that is not above 0, as audits have it that have found nothing; infinite for an
    infinite one.
    """
    if mu <= 0:
        return 0.0
    if math.isinf(mu):
        return mu
    most = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1
    return decreasing_root(lambda e: float(log_delta(e, mu)) - math.log(delta), 0.0, most)


def costs_at_most(leaves: Mapping[events.Event, int], epsilon: float, delta: float) -> bool:
    """True if ``leaves`` are Gaussian noise that surely costs at most ``epsilon`` at ``delta``.

    ``log_delta``'s formula by the standard library alone, for a device that has no other releases
    and is spared the accountant. False says nothing: other noise, too much of it, an ε of 700 or
    more, or so close to the limit that rounding could decide.
    """
    squared = 0.0
    others: dict[events.Event, int] = {}
    for leaf, count in leaves.items():
        if isinstance(leaf, events.GaussianEvent):
            squared += count / leaf.noise_multiplier**2
        else:
            others[leaf] = count
    mu, slack, rest = as_continuous_gaussians(math.sqrt(squared), others)
    left = min(epsilon, _MAX_EXPONENT) - 2 * slack
    if rest or not mu or not delta > 0 or not left >= 0:
        return False
    above = math.erfc((left / mu - mu / 2) / math.sqrt(2)) / 2
    below = math.exp(left) * math.erfc((left / mu + mu / 2) / math.sqrt(2)) / 2
    return above - below + _ROUNDED * above <= delta * math.exp(-slack)


def classical_constant(delta: float) -> float:
    """The constant c = √(2 ln(1.25/δ)): σ = cΔ/ε is (ε, δ)-DP for ε < 1 only.

    Dwork & Roth 2014, theorem A.1. For papers that state their noise by it, and as the start of a
    search; nothing is proven by it here.
    """
    return math.sqrt(2 * math.log(1.25 / delta))


def as_continuous_gaussians(
    gaussian_mu: float, rest: Mapping[events.Event, int]
) -> tuple[float, float, dict[events.Event, int]]:
    """Fine discrete noise taken for continuous noise, at the price of η.

    Whoever uses the result computes δ(ε) as e^η δ(ε − 2η), see the head of this file.

    Args:
        gaussian_mu: sensitivity / σ of the continuous Gaussians together.
        rest: releases with their counts. Those with noise of ``MIN_CONTINUOUS_SIGMA`` grid steps or
            more join the Gaussian, or, on Poisson samples, become samples with Gaussian noise: both
            distributions are mixtures, whose parts change by e^±η each.

    Returns:
        μ of the Gaussians together, Σ η, and what is left of ``rest``.
    """
    squared = gaussian_mu**2
    slack = 0.0
    left = Counter[events.Event]()
    for leaf, count in rest.items():
        noise = leaf.event if isinstance(leaf, events.PoissonSampledEvent) else leaf
        if not (
            isinstance(noise, events.DiscreteGaussianEvent) and noise.sigma >= MIN_CONTINUOUS_SIGMA
        ):
            left[leaf] += count
            continue
        slack += count * log_ratio(noise.sigma)
        if isinstance(leaf, events.PoissonSampledEvent):
            continuous = events.GaussianEvent(noise.sigma / noise.sensitivity)
            left[events.PoissonSampledEvent(leaf.rate, continuous)] += count
        else:
            squared += count * (noise.sensitivity / noise.sigma) ** 2
    return math.sqrt(squared), slack, left


def log_ratio(sigma: float) -> float:
    """η of one release with ``sigma`` in grid steps, in any number of dimensions up to 2²⁶.

    The mechanism releases no longer vector. But for the tails, whose probability is 2e^−20000.
    """
    deviation = 2 * math.sqrt(events.MAX_VECTOR_ENTRIES * _TAIL) + 2 * _TAIL
    largest = events.MAX_VECTOR_ENTRIES + deviation
    fourth = events.MAX_VECTOR_ENTRIES / 512 + largest**2 / 960
    return deviation / (24 * sigma**2) + fourth / sigma**4


def gain(honest_clients: int, weight: int, least_weight: int) -> float:
    """How much larger than one client's own the noise in a weighted sum is, beside its release.

    Client i's release times w_i, its noise of σ with it, stands beside the noise of h − 1 others of
    weight w_min at least: √(1 + (h − 1)(w_min/w_i)²). √h where all weigh the same. For continuous
    noise, and for noise that is fine beside the weights.
    """
    return math.sqrt(1 + (honest_clients - 1) * (least_weight / weight) ** 2)


def in_sum(leaf: events.DiscreteGaussianEvent, event: events.SummedEvent) -> events.Event:
    """``leaf``'s release as part of the sum that ``event`` tells of.

    Fine noise becomes the discrete Gaussian of the summed variance. Noise of weight w lies on a
    lattice of step w: that of others hides a release only where everybody's noise is fine beside
    that step (Micciancio and Peikert, CRYPTO 2013, theorem 3.3: σ ≥ w_max √2 η(Z)), or else the sum
    modulo w_j shows client i's release with its own noise alone. Coarse noise of equal weights on
    scalars keeps its wrapper, for its exact law; on vectors, whose coordinates' changes are not
    known, nothing is gained over one client's own noise, which is the safe side.
    """
    clients = event.honest_clients
    if event.least_weight != event.greatest_weight:
        if leaf.scalar or leaf.sigma < MIN_CLIENT_SIGMA * event.greatest_weight:
            return leaf
        more = gain(clients, event.weight, event.least_weight)
        return events.DiscreteGaussianEvent(leaf.sigma * more, leaf.sensitivity)
    if leaf.sigma >= MIN_CLIENT_SIGMA:
        return events.DiscreteGaussianEvent(
            leaf.sigma * math.sqrt(clients), leaf.sensitivity, leaf.scalar
        )
    points = _MAX_LATTICE_POINTS - leaf.sensitivity
    if not (leaf.scalar and float(leaf.sensitivity).is_integer() and points > 0):
        return leaf
    # The noise of a few clients more only adds to what these protect.
    clients = min(clients, math.floor((points / REACH / leaf.sigma) ** 2))
    if clients < 2 or leaf.sensitivity > _FAR * leaf.sigma * math.sqrt(clients):
        return leaf
    return events.SummedEvent(leaf, clients)
