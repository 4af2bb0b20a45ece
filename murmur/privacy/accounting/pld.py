"""Privacy-loss distributions of sampled and discrete Gaussians, composed under a tilt.

A release's loss is cut into the cells of a lattice. The mass of each cell is split between its two
ends so that its mass under P and under Q are both kept, which never lowers δ(ε), also of what is
composed ("connect the dots", Doroshenko et al. 2022). Masses are differences of tails, so that each
has its digits, however small it is; what lies beyond the tails is added to δ as if it told
everything. ``privacy_loss`` composes the lattices with a bound on its own errors that is relative
to δ: no rounding is lost where δ is 1e-15. (``dp_accounting`` composes by plain FFT, whose rounding
is 1e-16 of all mass: with 10,000 steps its ε at δ = 1e-14 is below the truth.)

A sampled Gaussian's pair is not symmetric: the larger of both directions counts, each composed by
itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from murmur.privacy.accounting import privacy_loss
from murmur.privacy.accounting.lattice import Floats, LatticeLoss
from murmur.privacy.events import DiscreteGaussianEvent, Event, GaussianEvent, PoissonSampledEvent

# Lattice cells: at most about this many up to ε, and over the losses of one release.
_CELLS = 20_000
_CELLS_OF_ONE = 50_000
# σ / sensitivity for which floats do.
_LEAST_NOISE, _MOST_NOISE = 0.06, 1e6
_MOST_STEPS = 20_000
# Deviations that a lattice covers, and what two tails beyond hold of one release.
_REACH = 12.0
_BEYOND = 4 * float(ndtr(-_REACH))  # 7e-33

Losses = list[LatticeLoss]


def supports(leaf: Event) -> bool:
    """Whether this module has a distribution for one elementary release."""
    multiplier = _noise_multiplier(leaf)
    return multiplier is not None and _LEAST_NOISE <= multiplier <= _MOST_NOISE


def _noise_multiplier(leaf: Event) -> float | None:
    if isinstance(leaf, PoissonSampledEvent) and isinstance(leaf.event, GaussianEvent):
        return leaf.event.noise_multiplier if leaf.rate < 1 else None
    if not (isinstance(leaf, DiscreteGaussianEvent) and leaf.scalar):
        return None
    # Every integer within reach is listed.
    if leaf.sigma > _MOST_STEPS or not float(leaf.sensitivity).is_integer():
        return None
    return leaf.sigma / leaf.sensitivity


def epsilon(
    rest: Mapping[Event, int],
    parts: Sequence[LatticeLoss],
    delta: float,
    gaussian_mu: float,
    scale: float,
) -> float:
    """The smallest ε with δ(ε) ≤ ``delta`` for all of it together, rounded up.

    ``rest``: releases that this module ``supports``, with counts; ``parts`` and
    ``gaussian_mu``: what else was released (``losses.split``). ``scale``: about how large ε
    will be; sets the lattice.
    """
    left = delta - _BEYOND * sum(rest.values())
    if left <= 0:
        return math.inf
    found = [
        privacy_loss.epsilon(losses, left, gaussian_mu)
        for losses in _directions(rest, parts, scale)
    ]
    return max(found)


def delta(
    rest: Mapping[Event, int], parts: Sequence[LatticeLoss], epsilon: float, gaussian_mu: float
) -> float:
    """δ(``epsilon``) of all of it together, rounded up; ``rest`` and others as for ``epsilon``."""
    found = [
        privacy_loss.delta(losses, epsilon, gaussian_mu)
        for losses in _directions(rest, parts, epsilon)
    ]
    return min(1.0, max(found) + _BEYOND * sum(rest.values()))


def _directions(
    rest: Mapping[Event, int], parts: Sequence[LatticeLoss], scale: float
) -> Iterator[Losses]:
    """All losses on one lattice: of a record that is there, and of one that is not."""
    multipliers = [_noise_multiplier(leaf) or math.inf for leaf in rest]
    # The loss of one release is about N(1/(2m²), 1/m²).
    widest = max(1 / m**2 + 2 * _REACH / m for m in multipliers)
    step = _step(max(scale / _CELLS, widest / _CELLS_OF_ONE))
    others = [part.on_step(step) for part in parts]
    for direction in (0, 1):
        own = [
            LatticeLoss(step, one.lowest, one.probabilities, count)
            for leaf, count in rest.items()
            for one in [_one(leaf, step)[direction]]
        ]
        yield own + others


def _step(wanted: float) -> float:
    """``wanted`` rounded up to a power of 2, to share cached distributions."""
    return 2.0 ** math.ceil(math.log2(wanted))


@lru_cache(maxsize=64)
def _one(leaf: Event, step: float) -> tuple[LatticeLoss, LatticeLoss]:
    """The loss of one release, in both directions."""
    if isinstance(leaf, DiscreteGaussianEvent):
        both = _discrete(leaf.sigma, int(leaf.sensitivity), step)
        return both, both
    if isinstance(leaf, PoissonSampledEvent) and isinstance(leaf.event, GaussianEvent):
        return _sampled(leaf.rate, leaf.event.noise_multiplier, step)
    raise ValueError(f"event={leaf!r}: has no distribution here")


def _discrete(sigma: float, sensitivity: int, step: float) -> LatticeLoss:
    """The discrete Gaussian against itself, ``sensitivity`` integers away."""
    reach = math.ceil(_REACH * sigma)
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    masses = np.exp(-((x / sigma) ** 2) / 2)
    losses = sensitivity * (sensitivity - 2 * x) / (2 * sigma**2)
    return LatticeLoss.of(losses, masses / masses.sum(), step)


def _sampled(rate: float, multiplier: float, step: float) -> tuple[LatticeLoss, LatticeLoss]:
    """(1−q)·N(0, m²) + q·N(1, m²) against N(0, m²), and the reverse; q = ``rate`` < 1.

    The loss ln(1 − q + q e^{(2x−1)/2m²}) rises with the outcome x, so that a cell of losses is one
    of outcomes.
    """
    lowest = math.floor(math.log1p(-rate) / step)
    largest = (1 + 2 * _REACH * multiplier) / (2 * multiplier**2)  # at x = 1 + reach, with q = 1
    highest = max(lowest + 1, math.ceil(_log_mixture(rate, largest) / step))
    losses = step * np.arange(lowest, highest + 1, dtype=np.float64)
    edges = np.append(-np.inf, _outcomes(rate, multiplier, losses[1:]))
    without = _masses(edges / multiplier)
    with_record = (1 - rate) * without + rate * _masses((edges - 1) / multiplier)
    there = _split(with_record, without, losses[1:], step)
    gone = _split(without[::-1], with_record[::-1], -losses[-2::-1], step)
    return LatticeLoss(step, lowest, there), LatticeLoss(step, -highest, gone)


def _log_mixture(rate: float, exponent: float) -> float:
    """ln(1 − q + q e^``exponent``), for an exponent above 0."""
    return exponent + math.log(rate + (1 - rate) * math.exp(-exponent))


def _outcomes(rate: float, multiplier: float, losses: Floats) -> Floats:
    """The x at which the loss is ``losses``, all above ln(1 − q)."""
    large = np.maximum(losses, 0.5)
    far = large + np.log1p(-(1 - rate) * np.exp(-large))
    near = np.log(np.maximum(rate + np.expm1(np.minimum(losses, 0.5)), 1e-300))
    ratio = np.where(losses > 0.5, far, near) - math.log(rate)
    return multiplier**2 * ratio + 0.5


def _masses(edges: Floats) -> Floats:
    """Standard normal masses between ``edges``, ascending: from the tails, where digits are."""
    low, high = edges[:-1], edges[1:]
    return np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))


def _split(p: Floats, q: Floats, upper: Floats, step: float) -> Floats:
    """The cells' masses ``p`` under P and ``q`` under Q at their ends, without zeros at the top.

    ``upper``: the cells' upper ends, each ``step`` above the lower one.
    """
    below = np.clip((q * np.exp(upper) - p) / math.expm1(step), 0.0, p)
    return np.trim_zeros(np.append(below, 0.0) + np.append(0.0, p - below), "b")
