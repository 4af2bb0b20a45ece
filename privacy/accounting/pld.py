"""Privacy-loss distributions of sampled and discrete Gaussians, by ``dp_accounting``.

The library is imported when the first such release is accounted for: it takes a second, and
most runs have none. Every rounding in it is upwards ("pessimistic").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from privacy.accounting.lattice import LatticeLoss
from privacy.events import DiscreteGaussianEvent, Event, GaussianEvent, PoissonSampledEvent

_FINEST = 1e-4
# Lattice cells: at most about this many up to ε, and over the losses of one release.
_CELLS = 10000
_CELLS_OF_ONE = 300_000
# σ / sensitivity for which the library's floats do.
_LEAST_NOISE, _MOST_NOISE = 0.06, 1e6
_MOST_STEPS = 20_000


def supports(leaf: Event) -> bool:
    """Whether this module has a distribution for one elementary release."""
    multiplier = _noise_multiplier(leaf)
    return multiplier is not None and _LEAST_NOISE <= multiplier <= _MOST_NOISE


def _noise_multiplier(leaf: Event) -> float | None:
    if isinstance(leaf, PoissonSampledEvent) and isinstance(leaf.event, GaussianEvent):
        return leaf.event.noise_multiplier
    if not (isinstance(leaf, DiscreteGaussianEvent) and leaf.scalar):
        return None
    # The library lists every integer within reach.
    if leaf.sigma > _MOST_STEPS or not float(leaf.sensitivity).is_integer():
        return None
    return leaf.sigma / leaf.sensitivity


def compose(
    rest: Mapping[Event, int], parts: Sequence[LatticeLoss], gaussian_mu: float, scale: float
) -> Any:
    """A ``dp_accounting`` distribution of all of it together.

    ``rest``: releases that this module ``supports``, with counts; ``parts`` and
    ``gaussian_mu``: what else was released (``losses.split``). ``scale``: about how large ε
    will be; sets the lattice.
    """
    multipliers = [_noise_multiplier(leaf) or math.inf for leaf in rest]
    # The loss of one release is about N(1/(2m²), 1/m²), and the library keeps 10 deviations.
    widest = max((1 / m**2 + 20 / m for m in multipliers), default=0.0)
    step = _step(max(scale / _CELLS, widest / _CELLS_OF_ONE))
    total = None
    for leaf, count in rest.items():
        total = _join(total, _one(leaf, step), count)
    for part in parts:
        total = _join(total, _from_lattice(part, step), part.count)
    if gaussian_mu:
        from dp_accounting.pld import privacy_loss_distribution as pld

        gaussian = pld.from_gaussian_mechanism(1 / gaussian_mu, value_discretization_interval=step)
        total = _join(total, gaussian, 1)
    return total


def _step(wanted: float) -> float:
    """``wanted`` rounded up to 2^j times the finest, to share cached distributions."""
    return _FINEST * 2.0 ** max(0, math.ceil(math.log2(max(wanted, _FINEST) / _FINEST)))


def _join(total: Any, one: Any, count: int) -> Any:
    many = one.self_compose(count) if count > 1 else one
    return many if total is None else total.compose(many)


@lru_cache(maxsize=64)
def _one(leaf: Event, step: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld

    if isinstance(leaf, DiscreteGaussianEvent):
        return pld.from_discrete_gaussian_mechanism(
            leaf.sigma,
            int(leaf.sensitivity),
            value_discretization_interval=step,
            use_connect_dots=True,
        )
    if isinstance(leaf, PoissonSampledEvent) and isinstance(leaf.event, GaussianEvent):
        return pld.from_gaussian_mechanism(
            leaf.event.noise_multiplier,
            sampling_prob=leaf.rate,
            value_discretization_interval=step,
        )
    raise ValueError(f"event={leaf!r}: has no distribution here")


def _from_lattice(part: LatticeLoss, step: float) -> Any:
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    fitted = part.on_step(step)
    masses = {
        fitted.lowest + i: float(mass) for i, mass in enumerate(fitted.probabilities) if mass > 0
    }
    return pld.PrivacyLossDistribution(pld_pmf.create_pmf(masses, step, 0.0, True))
