"""The least noise that meets a target ε, for the mechanisms that state their noise by it.

Each is a search over one parameter (``murmur.privacy.search``) with the accountant's own ε as the
cost, so that what is calibrated here is charged at most what it was calibrated for. A run pays for
its calibrations when it starts. dp-accounting's ``calibrate_dp_mechanism`` knows its own
accountants only.

First Gaussian noise, continuous and discrete, then that of noisy sums over samples, then labels and
bits. Results err towards more noise. All raise ValueError where ε is not finite and above 0, and
where no noise of the range that is searched meets it.
"""

import math
from functools import lru_cache

from murmur.checks import require_count
from murmur.privacy import events
from murmur.privacy.accounting import gaussian, rdp
from murmur.privacy.accounting.compose import epsilon as epsilon_of
from murmur.privacy.accounting.flatten import Threat, View, flatten
from murmur.privacy.search import decreasing_root, least_noise, require_budget

# The accountant searches Rényi orders on a lattice, which costs it less than this.
_LATTICE = 1 - 1e-5


def gaussian_noise_multiplier(epsilon: float, delta: float, count: int = 1) -> float:
    """The least σ/Δ with which ``count`` Gaussian releases are DP together.

    Exact for continuous noise (Balle & Wang 2018, theorem 8). Δ is the L2 sensitivity of one
    release. Raises ValueError for ε not above 0 or δ not in (0, 1).
    """
    require_budget(epsilon, delta)
    log_delta = math.log(delta)

    def excess(log_multiplier: float) -> float:
        return float(gaussian.log_delta(epsilon, math.exp(-log_multiplier))) - log_delta

    # The classical constant is enough for ε < 1; √2-fold of it plus 1 always is.
    safe = math.log(gaussian.classical_constant(delta) / epsilon + 1 / math.sqrt(2 * epsilon) + 1)
    return math.exp(decreasing_root(excess, -40.0, safe)) * math.sqrt(count)


def discrete_noise_multiplier(
    epsilon: float, delta: float, count: int, steps: float = math.inf
) -> float:
    """Least noise multiplier of discrete Gaussian noise, with what its grid adds paid for.

    Args:
        epsilon: of all releases together, finite and above 0.
        delta: of the same, in (0, 1).
        count: releases.
        steps: Δ in grid steps. Where σ would be below ``gaussian.MIN_CONTINUOUS_SIGMA`` of them,
            ε above ``gaussian.MAX_EPSILON``, or many releases cost nearly nothing each, the noise
            is known by its concentrated DP only.

    Raises:
        ValueError: ε not finite and above 0, or δ not in (0, 1).
    """
    slack = count * gaussian.log_ratio(gaussian.MIN_CONTINUOUS_SIGMA)
    if 4 * slack < epsilon <= gaussian.MAX_EPSILON:
        each = gaussian_noise_multiplier(epsilon - 2 * slack, delta * math.exp(-slack), count)
        if each * steps >= gaussian.MIN_CONTINUOUS_SIGMA:
            return each
    return math.sqrt(count / (2 * rdp.largest_rho(epsilon * _LATTICE, delta)))


@lru_cache(maxsize=1024)
def sampled_noise_multiplier(
    epsilon: float, delta: float, rate: float, steps: int, sensitivity: int
) -> float:
    """The least σ/Δ with which ``steps`` noisy sums over Poisson samples are DP together.

    By privacy-loss distributions, within a thousandth of the best. Neighbours differ by one record
    more or less, or by a nulled one: DP-SGD's. Cached, for it takes longest of all here.

    Args:
        epsilon: of all steps together, finite and above 0.
        delta: of the same, in (0, 1).
        rate: probability with which each record is in a sample, in (0, 1].
        steps: sums, at least 1.
        sensitivity: Δ in grid steps of the discrete noise.

    Raises:
        ValueError: a setting is out of range.
    """
    require_budget(epsilon, delta)
    if not 0 < rate <= 1:
        raise ValueError(f"rate={rate}: must lie in (0, 1]")
    require_count("steps", steps)

    def one(multiplier: float) -> events.Event:
        return events.PoissonSampledEvent(
            rate, events.DiscreteGaussianEvent(multiplier * sensitivity, sensitivity)
        )

    def by_renyi(multiplier: float) -> float:
        return rdp.epsilon({one(multiplier): steps}, delta)

    def cost(multiplier: float) -> float:
        return epsilon_of(events.RepeatedEvent(one(multiplier), steps), delta).epsilon

    # Sampling only helps, but integer orders, from 2 on, cost √2-fold noise at a large ε. A
    # distribution gains some 15% on these, more at a large ε; it takes long where noise is small.
    unsampled = 2 * discrete_noise_multiplier(epsilon, delta, steps, 0)
    most = least_noise(by_renyi, epsilon, 1e-2, unsampled, precision=1e-2)
    least = 0.7 * most
    while cost(least) <= epsilon:
        most = least
        least = 0.7 * most
    return least_noise(cost, epsilon, least, most, precision=5e-4)


def label_epsilon(
    epsilon: float, delta: float, categories: int, labels: int, threat: Threat = Threat.LOCAL
) -> float:
    """The largest ε0 per label with which ``labels`` labels cost at most ``epsilon`` in all.

    What a budget for the whole run leaves: a round of K labels may then spend K·ε0. At least
    ε/labels, which basic composition allows.

    Args:
        epsilon: of all labels together, finite and above 0.
        delta: of the same, in [0, 1).
        categories: values that a label can have, at least 2.
        labels: how many one client releases.
        threat: against whom.
    """

    def cost(noise: float) -> float:
        event = events.RepeatedEvent(events.RandomizedResponseEvent(1 / noise, categories), labels)
        return epsilon_of(event, delta, threat).epsilon

    # Basic composition always allows ε/labels.
    most = labels / epsilon
    return 1 / least_noise(cost, epsilon, min(most, 1e-3), most)


def bits_gamma(
    epsilon: float,
    delta: float,
    bits: int,
    rounds: int,
    threat: Threat = Threat.LOCAL,
    honest_clients: int = 1,
    sensitivity_bits: int | None = None,
    conversion: rdp.Conversion | None = None,
) -> float:
    """The largest γ with which ``rounds`` vectors of ``bits`` bits cost at most ``epsilon``.

    DPFL-BNN's reports (``bits``), for a client that is exchanged for any other.

    Args:
        epsilon: of all rounds together, finite and above 0.
        delta: of the same, in [0, 1).
        bits: of one vector.
        rounds: how many vectors a client releases.
        threat: against whom.
        honest_clients: how many are summed under secure aggregation.
        sensitivity_bits: bits in which neighbours differ; None: all of them.
        conversion: count by Rényi divergence and this conversion alone, to reproduce a paper's
            figure. None: by the best proven bound.
    """
    differing = bits
    if sensitivity_bits is not None:
        differing = sensitivity_bits

    def cost(noise: float) -> float:
        vector = events.RandomizedBitsEvent(_gamma(noise), bits, differing)
        release = events.Release(
            vector, events.Unit.CLIENT, events.Adjacency.REPLACE_ONE, hiding=events.Hiding.REPORTS
        )
        event = events.RepeatedEvent(events.SummedEvent(release, honest_clients), rounds)
        if conversion is None:
            return epsilon_of(event, delta, threat).epsilon
        return rdp.epsilon(flatten(event, View(threat)), delta, conversion)

    return _gamma(least_noise(cost, epsilon, 1e-6, 1e9))


def _gamma(noise: float) -> float:
    """γ in (0, ½), falling with ``noise`` > 0."""
    return 0.5 / (1 + noise)
