"""A sum of discrete Gaussians: the discrete Gaussian of the summed variance, or its exact law.

Over h clients whose noise is N_Z(0, σ₁²) each, one coordinate of the sum is not a discrete
Gaussian, but its law is within e^±τ of N_Z(0, hσ₁²)'s, for σ₁ ≥ ½, with

    τ = 10 Σ_{k=1}^{h−1} exp(−2π²σ₁² k/(k+1))

(Kairouz, Liu, Steinke, "The distributed discrete Gaussian mechanism for federated learning with
secure aggregation", ICML 2021, arXiv 2102.06387). From σ₁ = 4 on that is below h·10⁻⁶⁷: over 2²⁶
coordinates of a million releases no float shows it. Below, a coordinate's exact law is the h-fold
convolution, from which its privacy loss follows without any bound.
"""

from __future__ import annotations

import math

import numpy as np

from murmur.privacy.accounting.lattice import Floats, LatticeLoss
from murmur.privacy.events import DiscreteGaussianEvent, Event, SummedEvent

FINE = 4.0
"""The least σ₁, in grid steps, from which on the sum counts as a discrete Gaussian."""

# Beyond so many standard deviations there is a mass below 1e-105, which no float δ shows.
_REACH = 22.0
# The convolutions are direct, so that tails keep their digits: a wide law would take long.
_WIDEST = 2048
# Shifts beyond so many standard deviations (an ε above 50) are left to what one client adds.
_FAR = 10.0
_STEPS_PER_DEVIATION = 200


def gain(honest_clients: int, weight: int, least_weight: int) -> float:
    """How much larger than one client's own the noise in a weighted sum is, beside its release.

    Client i's release times w_i, its noise of σ with it, stands beside the noise of h − 1 others
    of weight w_min at least: √(1 + (h − 1)(w_min/w_i)²).
    """
    return math.sqrt(1 + (honest_clients - 1) * (least_weight / weight) ** 2)


def summed(leaf: DiscreteGaussianEvent, event: SummedEvent) -> Event:
    """``leaf``'s release as part of the sum that ``event`` tells of.

    Fine noise becomes the discrete Gaussian of the summed variance. Noise of weight w lies on a
    lattice of step w: that of others hides a release only where everybody's noise is fine beside
    that step (Micciancio and Peikert, CRYPTO 2013, theorem 3.3: σ ≥ w_max √2 η(Z)), or else the sum
    modulo w_j shows client i's release with its own noise alone. Coarse noise of equal weights on
    scalars keeps its wrapper, for ``loss``; on vectors, whose coordinates' changes are not known,
    nothing is gained over one client's own noise, which is the safe side.
    """
    clients = event.honest_clients
    equal = event.least_weight == event.greatest_weight
    if not equal:
        if leaf.scalar or leaf.sigma < FINE * event.greatest_weight:
            return leaf
        more = gain(clients, event.weight, event.least_weight)
        return DiscreteGaussianEvent(leaf.sigma * more, leaf.sensitivity)
    if leaf.sigma >= FINE:
        return DiscreteGaussianEvent(leaf.sigma * math.sqrt(clients), leaf.sensitivity, leaf.scalar)
    if not (leaf.scalar and float(leaf.sensitivity).is_integer()):
        return leaf
    # The noise of a few clients more only adds to what these protect.
    least = _WIDEST - leaf.sensitivity
    clients = min(clients, math.floor((least / _REACH / leaf.sigma) ** 2)) if least > 0 else 1
    far = leaf.sensitivity > _FAR * leaf.sigma * math.sqrt(clients)
    return leaf if clients < 2 or far else SummedEvent(leaf, clients)


def loss(noise: DiscreteGaussianEvent, clients: int) -> LatticeLoss:
    """The privacy loss of one coordinate of the sum, from its exact law."""
    shift = int(noise.sensitivity)
    deviation = noise.sigma * math.sqrt(clients)
    reach = math.ceil(_REACH * deviation)
    law = law_of_sum(noise.sigma, clients, reach + shift)
    masses, shifted = law[shift:-shift], law[: -2 * shift]  # P(x) and P(x − shift), |x| ≤ reach
    losses = np.log(masses) - np.log(shifted)
    return LatticeLoss.of(losses, masses, shift / deviation / _STEPS_PER_DEVIATION)


def law_of_sum(sigma: float, clients: int, reach: int) -> Floats:
    """P(X₁ + … + X_clients = x) for x in ±``reach``, each X_i a discrete Gaussian of ``sigma``.

    Shape (2·reach + 1,). All terms are positive, so that every entry keeps its digits; what lies
    beyond ``reach`` is left out, also on the way.
    """
    x = np.arange(-reach, reach + 1)
    power = np.exp(-((x / sigma) ** 2) / 2)
    power /= power.sum()
    result = np.zeros(len(x))
    result[reach] = 1.0
    while clients:
        if clients % 2:
            result = np.convolve(result, power)[reach:-reach]
        clients //= 2
        if clients:
            power = np.convolve(power, power)[reach:-reach]
    return result
