"""Rényi and concentrated DP: curves of elementary releases, composition, conversion to ε.

Every order alone gives a proven ε, so that the least of many is one, and a coarser grid of orders
only gives a larger one. Orders α are searched on a fixed lattice, α − 1 = e^{i/200}: off by at most
a quarter of a percent from the best order, where ε is flat (3e-6 relative), and every value can be
cached.

Concentrated DP (Bun & Steinke 2016) is the special case of a straight line: ρ adds up under
composition; ε-DP is ε²/2-zCDP; a Gaussian with noise multiplier m is 1/(2m²)-zCDP, and so is the
discrete one (Canonne, Kamath, Steinke 2020).

Ours, since dp-accounting knows no discrete noise, no sums and no shuffling, converts at fixed
orders only, and its fractional orders of sampled noise are proven for continuous noise alone.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from murmur.privacy import events
from murmur.privacy.accounting import bits
from murmur.privacy.accounting.elementary_losses import lattice_loss
from murmur.privacy.accounting.flatten import pure_epsilon
from murmur.privacy.search import decreasing_root, minimum, require_budget

_PER_E_FOLD = 200
_LOWEST = -20 * _PER_E_FOLD
_HIGHEST = 14 * _PER_E_FOLD
_FIRST_STRIDE = 125
_INTEGER_ORDERS = range(2, 65)
_MAX_SAMPLED_ORDER = 10_000.0

# (D_α, α, δ) to ε
Conversion = Callable[[float, float, float], float]


def to_epsilon(divergence: float, order: float, delta: float) -> float:
    """ε at ``delta`` from D_α ≤ ``divergence`` (Canonne, Kamath, Steinke 2020, prop. 12).

    ``order``: α > 1. May be below 0, which callers cut.
    """
    excess = order - 1
    return divergence - math.log1p(1 / excess) - (math.log(delta) + math.log(order)) / excess


def to_epsilon_mironov(divergence: float, order: float, delta: float) -> float:
    """ε at ``delta`` from D_α ≤ ``divergence`` (Mironov 2017, prop. 3), as papers use it.

    Never below ``to_epsilon``. For reproducing figures only.
    """
    return divergence - math.log(delta) / (order - 1)


def epsilon(
    leaves: Mapping[events.Event, int],
    delta: float,
    conversion: Conversion = to_epsilon,
) -> float:
    """ε of elementary releases with their counts (``flatten``), best order; inf if unknown.

    The order is searched on the lattice, by refinement, and among whole numbers, where some
    divergence is known at those only.

    ``delta``: above 0 and below 1. ``conversion``: from D_α to ε.
    """

    def value(order: float) -> float:
        total = sum(count * divergence(leaf, order) for leaf, count in leaves.items())
        if not math.isfinite(total):
            return math.inf
        return conversion(total, order, delta)

    whole = any(isinstance(leaf, events.PoissonSampledEvent) for leaf in leaves)
    return max(0.0, least(value, whole))


def least(value: Callable[[float], float], whole: bool = False) -> float:
    """The least of ``value`` over orders: on the lattice, by refinement.

    ``whole``: and among whole numbers, where some divergence is known at those only.
    """
    low = _LOWEST
    high = _HIGHEST
    stride = _FIRST_STRIDE
    while stride:
        orders = {i: 1 + math.exp(i / _PER_E_FOLD) for i in range(low, high + 1, stride)}
        best = min(orders, key=lambda i: value(orders[i]))
        low = max(_LOWEST, best - stride)
        high = min(_HIGHEST, best + stride)
        stride //= 5
    found = value(orders[best])
    if whole:
        found = min(found, *(value(float(order)) for order in _INTEGER_ORDERS))
    return found


@lru_cache(maxsize=200_000)
def divergence(leaf: events.Event, order: float) -> float:
    """D_α of one elementary release at one order α > 1; inf where none is known.

    The worse of both orders of two neighbours. Divergences of independent releases add up.
    """
    mu = _gaussian_mu(leaf)
    if mu is not None:
        return order * (mu * mu) / 2  # mu**2 raises where it overflows
    if isinstance(leaf, events.PoissonSampledEvent):
        noise = leaf.event
        if isinstance(noise, events.GaussianEvent):
            return sampled_divergence(leaf.rate, noise.noise_multiplier, order)
        if isinstance(noise, events.DiscreteGaussianEvent):
            return sampled_divergence(leaf.rate, noise.sigma / noise.sensitivity, order)
    if isinstance(leaf, events.SummedEvent) and isinstance(leaf.event, events.RandomizedBitsEvent):
        coordinate = bits.summed_divergence(leaf.event.gamma, leaf.honest_clients, order)
        return leaf.event.sensitivity_bits * coordinate
    part = lattice_loss(leaf)
    if part is None:
        return math.inf
    return part.count * part.log_mgf(order - 1) / (order - 1)


def sampled_divergence(rate: float, noise_multiplier: float, order: float) -> float:
    """D_α of one step of DP-SGD at the next integer order, which is larger; inf above order 10⁴.

    Gaussian noise on the sum over a Poisson sample of the records. Neighbours differ by one record
    more or less (or by one nulled, which costs the same); the worst pair is
    P = (1−q)·N(0, m²) + q·N(1, m²) against Q = N(0, m²), in this direction (Mironov, Talwar, Zhang
    2019). Where the noise counts as continuous, its privacy-loss distribution is tighter (``pld``).

    The closed form (eq. 5) also bounds discrete noise on integers: its moments E_Q[(P/Q)^k] are
    those of the discrete Gaussian between integer vectors, which are at most the continuous one's
    (Canonne, Kamath, Steinke 2020, proposition 5), and x ↦ Δ − x, which keeps the integers, makes
    this the worse direction (Mironov et al. 2019, theorem 5).
    """
    if order > _MAX_SAMPLED_ORDER:
        return math.inf
    inverse = 1 / noise_multiplier / noise_multiplier
    whole = math.ceil(order)
    if rate == 1:
        return whole / 2 * inverse
    i = np.arange(whole + 1, dtype=np.float64)
    log_choose = gammaln(whole + 1) - gammaln(i + 1) - gammaln(whole - i + 1)
    log_chance = log_choose + i * math.log(rate) + (whole - i) * math.log1p(-rate)
    return float(logsumexp(log_chance + (i * i - i) / 2 * inverse)) / (whole - 1)


def rho(leaves: Mapping[events.Event, int]) -> float:
    """ρ of elementary releases with their counts, for concentrated DP; inf if one has none."""
    return sum(count * _rho_of(leaf) for leaf, count in leaves.items())


def epsilon_of_rho(rho: float, delta: float) -> float:
    """ε = ρ + 2√(ρ ln(1/δ)) (Bun & Steinke 2016, proposition 1.3)."""
    return rho + 2 * math.sqrt(-rho * math.log(delta))


def log_delta_of_rho(rho: float, epsilon: float) -> float:
    """Logarithm of a δ at which ρ-zCDP gives (``epsilon``, δ)-DP; may be above 0.

    The least over α of e^((α−1)(αρ−ε)) · (1 − 1/α)^α / (α − 1) (Canonne, Kamath, Steinke 2020,
    corollary 13); every α gives a valid bound, so that its search need not be exact.
    """

    def log_delta(log_excess: float) -> float:
        excess = math.exp(log_excess)  # α − 1
        alpha = 1 + excess
        return excess * (alpha * rho - epsilon) - log_excess - alpha * math.log1p(1 / excess)

    # The exponent grows like α²ρ, hence the best α is near ε/2ρ; the rest is a wide margin.
    return log_delta(minimum(log_delta, -20.0, math.log1p(epsilon / rho) + 20.0))


def largest_rho(epsilon: float, delta_allowed: float) -> float:
    """The largest ρ, to a relative 10⁻¹², that implies (``epsilon``, ``delta_allowed``)-DP.

    Raises ValueError for an ε not finite and above 0, or a δ not in (0, 1).
    """
    require_budget(epsilon, delta_allowed)
    tail = -math.log(delta_allowed)

    def excess(negative_log_rho: float) -> float:
        return log_delta_of_rho(math.exp(-negative_log_rho), epsilon) + tail

    # ``epsilon_of_rho`` is the weaker bound, hence a ρ to start from.
    start = -2 * math.log(math.sqrt(epsilon + tail) - math.sqrt(tail))
    low = start - math.log(2)
    while excess(low) <= 0:
        low -= math.log(2)
    return math.exp(-decreasing_root(excess, low, start, 1e-13))


def _rho_of(leaf: events.Event) -> float:
    mu = _gaussian_mu(leaf)
    if mu is not None:
        return mu * mu / 2
    if isinstance(leaf, events.RandomizedBitsEvent):
        one = bits.epsilon_of_bit(leaf.gamma)
        return leaf.sensitivity_bits * (one * one / 2)
    if isinstance(leaf, events.SummedEvent):
        return _rho_of(leaf.event)
    pure = pure_epsilon(leaf)
    if pure is None:
        return math.inf
    return pure * pure / 2


def _gaussian_mu(leaf: events.Event) -> float | None:
    """L2 sensitivity / σ of Gaussian noise; the discrete Gaussian's curve is below its."""
    if isinstance(leaf, events.GaussianEvent):
        return 1 / leaf.noise_multiplier
    if isinstance(leaf, events.DiscreteGaussianEvent):
        return leaf.sensitivity / leaf.sigma
    return None
