"""What a secure sum gives away of one client's part, by the law of the sum, and no accountant.

The server knows the data of all other clients; of the honest ones it does not know the noise. So
one coordinate of the sum is the victim's part, moved to a place that its data decide, plus the
noise of every part, and what the server learns is how well it tells two such laws apart. Here the
laws are written down in full, on the integers that are summed, weights and lattices included.

``Seen`` holds two laws; ``Seen.epsilon(delta, count)`` is the least ε of ``count`` of them together
(rounded down, so that it is what the server gains at least).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import signal
from scipy.special import log_ndtr

Floats = NDArray[np.float64]
_REACH = 9.0  # standard deviations, beyond which there is less than 1e-18
_CELLS = 4000  # on which losses are composed
_COARSE = 24.0  # steps of σ that a fine law is written down with


@dataclass(frozen=True)
class Seen:
    """The laws (outcomes,) of what is seen where the victim has the one data set, or the other."""

    one: Floats
    other: Floats

    def epsilon(self, delta: float, count: int = 1) -> float:
        """The least ε for which ``count`` such views, one after the other, are (ε, δ)-private."""
        both = (Seen(self.one, self.other), Seen(self.other, self.one))
        return max(each._one_way(delta, count) for each in both)

    def _one_way(self, delta: float, count: int) -> float:
        possible = self.one > 0
        masses = self.one[possible]
        with np.errstate(divide="ignore"):
            losses = np.log(masses) - np.log(self.other[possible])
        sure = np.isinf(losses)  # what the other data set never leads to
        caught = 1 - (1 - masses[sure].sum()) ** count
        if caught >= delta:
            return math.inf
        losses, masses = losses[~sure], masses[~sure]
        if count > 1:
            losses, masses = _together(losses, masses, count)
        return _least(losses, masses, delta - caught)


def _together(losses: Floats, masses: Floats, count: int) -> tuple[Floats, Floats]:
    """The sum of ``count`` losses, each rounded down to a grid."""
    kept = masses > 1e-15
    losses, masses = losses[kept], masses[kept]
    step = max(float(np.ptp(losses)) / _CELLS, 1e-9)
    cells = np.floor(losses / step).astype(int)
    first = int(cells.min())
    one = np.bincount(cells - first, weights=masses)
    every = one
    for _ in range(count - 1):
        every = signal.fftconvolve(every, one).clip(0)
    return step * (count * first + np.arange(len(every))), every


def _least(losses: Floats, masses: Floats, delta: float) -> float:
    """The least ε ≥ 0 with Σ P(loss)(1 − e^(ε − loss))⁺ ≤ δ."""

    def gap(epsilon: float) -> float:
        above = losses > epsilon
        return float(masses[above] @ -np.expm1(epsilon - losses[above])) - delta

    low, high = 0.0, max(float(losses.max(initial=0.0)), 0.0)
    if gap(low) <= 0:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        if gap(middle) > 0:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True)
class Noised:
    """A client adds ``weight`` · (its number + discrete Gaussian noise of ``sigma`` steps)."""

    sigma: float
    weight: int = 1

    def law(self, unit: int = 1) -> Floats:
        """Of its noise, on integers around 0 of which ``unit`` make one."""
        reach = math.ceil(_REACH * self.sigma)
        x = np.arange(-reach, reach + 1)
        masses = np.exp(-((x / self.sigma) ** 2) / 2)
        stretched = np.zeros(2 * reach * self.weight * unit + 1)
        stretched[:: self.weight * unit] = masses / masses.sum()
        return stretched


def noised_sum(victim: Noised, others: Sequence[Noised], moved: float) -> Seen:
    """The victim's number is 0 or ``moved`` (steps); ``others`` are the honest clients beside it.

    Where noise is far too fine to be written down, all of it is put on a coarser grid, with the
    same weights: one whose steps are still too small to be seen.
    """
    finest = min(part.sigma for part in (victim, *others))
    heaviest = max(part.weight for part in (victim, *others)) / victim.weight
    if finest > 2 * _COARSE * heaviest and moved > _COARSE:
        spread = math.sqrt(sum((p.weight * p.sigma) ** 2 for p in (victim, *others)))
        return normal_sum(victim.weight * moved / spread)
    shift = victim.weight * int(moved)
    total = victim.law()
    for part in others:
        total = (
            signal.fftconvolve(total, part.law()).clip(0)
            if len(total) > 4096
            else np.convolve(total, part.law())
        )
    return Seen(np.append(total, np.zeros(shift)), np.append(np.zeros(shift), total))


def normal_sum(distance: float) -> Seen:
    """Normal laws, ``distance`` standard deviations apart, in 200,000 cells."""
    x = np.linspace(-_REACH - distance, _REACH + distance, 200_001)
    one = np.exp(log_ndtr(x + distance / 2))
    other = np.exp(log_ndtr(x - distance / 2))
    return Seen(np.diff(one), np.diff(other))
