"""Discrete Gaussian noise on a fine grid, accounted for as continuous Gaussian noise.

Rounding a Gaussian to whole numbers is post-processing: with an integer vector k, round(k + σZ) =
k + round(σZ) is a function of k + σZ. So round(σZ) is as private as the Gaussian, and the discrete
Gaussian's probabilities differ from those of round(σZ) by a factor near 1.
For one coordinate x, with u uniform on ±½,

    ln P(round(σZ) = x) − ln φ_σ(x) = ln E[cosh(xu/σ²) e^(−u²/2σ²)].

The first factor rises with u² and the second falls (Chebyshev); with sinh(a)/a ≤ e^(a²/6) and
Hoeffding's lemma it is at most (x²/σ² − 1)/24σ² + 1/512σ⁴. By Jensen and ln cosh a ≥ a²/2 − a⁴/12
it is at least (x²/σ² − 1)/24σ² − x⁴/960σ⁸. The discrete Gaussian's normalising sum is that of φ_σ
up to e^(−2π²σ²) (Poisson). In d coordinates with S = Σx²/σ² the logarithms differ by at most

    η = |S − d|/24σ² + d/512σ⁴ + S²/960σ⁴,   |S − d| ≤ 2√(dt) + 2t but for probability 2e^−t,

since S has the moments of a χ² under both (Laurent and Massart 2000, lemma 1). Two shifted copies
therefore satisfy δ(ε) ≤ e^η δ_Gauss(ε − 2η) + 2e^−t (1 + e^ε), and η adds up over releases.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from murmur.privacy.events import DiscreteGaussianEvent, Event, GaussianEvent, PoissonSampledEvent
from murmur.privacy.mechanisms.discrete_gaussian import LONGEST

FINEST = 2.0**16
"""The least σ, in grid steps, from which on this applies."""

_TAIL = 20_000.0
# Up to here e^(ε − t) is nothing beside any δ that floats can hold.
_LARGEST_EPSILON = 10_000.0


def absorb(gaussian_mu: float, rest: Mapping[Event, int]) -> tuple[float, float, dict[Event, int]]:
    """μ with the fine releases of ``rest`` in it, their η, and what is left of ``rest``.

    Of a Poisson sample, noise on a fine grid is left as Gaussian noise: both distributions are
    mixtures, whose parts change by e^±η each.
    """
    squared, slack, left = gaussian_mu**2, 0.0, Counter[Event]()
    for leaf, count in rest.items():
        noise = leaf.event if isinstance(leaf, PoissonSampledEvent) else leaf
        if not (isinstance(noise, DiscreteGaussianEvent) and noise.sigma >= FINEST):
            left[leaf] += count
            continue
        slack += count * log_ratio(noise.sigma)
        if isinstance(leaf, PoissonSampledEvent):
            continuous = GaussianEvent(noise.sigma / noise.sensitivity)
            left[PoissonSampledEvent(leaf.rate, continuous)] += count
        else:
            squared += count * (noise.sensitivity / noise.sigma) ** 2
    return math.sqrt(squared), slack, left


def log_ratio(sigma: float) -> float:
    """η of one release with ``sigma`` in grid steps; the mechanism releases no longer vector."""
    deviation = 2 * math.sqrt(LONGEST * _TAIL) + 2 * _TAIL
    largest = LONGEST + deviation
    fourth = LONGEST / 512 + largest**2 / 960
    return deviation / (24 * sigma**2) + fourth / sigma**4


def trusted(epsilon: float) -> bool:
    """Whether the exceptions of probability e^−t do not matter at ``epsilon``."""
    return epsilon <= _LARGEST_EPSILON
