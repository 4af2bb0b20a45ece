"""What a secure sum gives away of one client's part, by the law of the sum, and no accountant.

The server knows the data of all other clients; of the honest ones it does not know the noise. So
one coordinate of the sum is the victim's part, moved to a place that its data decide, plus the
noise of every part, and what the server learns is how well it tells two such laws apart. Here the
laws are written down in full, on the integers that are summed, weights and lattices included.

``Seen`` holds two such laws, and ``epsilon_of`` the least ε of any number of them together (rounded
down, so that it is what the server gains at least).
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
_CELLS = 2000  # on which losses are composed
_FINE = 24.0  # steps of σ, of which a sum shows none
_MIN_PROBABILITY = 1e-14  # what is less likely counts as that likely: FFTs leave such errors


@dataclass(frozen=True)
class Seen:
    """The laws (outcomes,) of what is seen where the victim has the one data set, or the other."""

    one: Floats
    other: Floats


def epsilon_of(seen: Sequence[tuple[Seen, int]], delta: float) -> float:
    """The least ε for which ``seen``, each so often, are (ε, δ)-private together."""
    swapped = [(Seen(each.other, each.one), count) for each, count in seen]
    return max(_one_way(seen, delta), _one_way(swapped, delta))


def _one_way(seen: Sequence[tuple[Seen, int]], delta: float) -> float:
    found = []
    for each, count in seen:
        possible = each.one > _MIN_PROBABILITY
        masses = each.one[possible]
        losses = np.log(masses / np.maximum(each.other[possible], _MIN_PROBABILITY))
        found.append((losses, masses, count))
    if len(found) == 1 and found[0][2] == 1:
        return _least(*found[0][:2], delta)
    return _least(*_together(found), delta)


def _together(found: Sequence[tuple[Floats, Floats, int]]) -> tuple[Floats, Floats]:
    """The sum of losses, each rounded down to one grid."""
    step = max(max(float(np.ptp(losses)) for losses, _, _ in found) / _CELLS, 1e-9)
    first = 0
    every: Floats = np.ones(1)
    for losses, masses, count in found:
        cells = np.floor(losses / step).astype(int)
        first += count * int(cells.min())
        one: Floats = np.bincount(cells - cells.min(), weights=masses)
        size = count * (len(one) - 1) + 1
        whole = np.fft.irfft(np.fft.rfft(one, 2 * size) ** count, 2 * size)[:size]
        every = signal.fftconvolve(every, whole).clip(0)
    losses_of_sum: Floats = step * (first + np.arange(len(every)))
    return losses_of_sum, every


def _least(losses: Floats, masses: Floats, delta: float) -> float:
    """The least ε ≥ 0 with Σ P(loss)(1 − e^(ε − loss))⁺ ≤ δ."""

    def excess(epsilon: float) -> float:
        above = losses > epsilon
        return float(masses[above] @ -np.expm1(epsilon - losses[above])) - delta

    low, high = 0.0, max(float(losses.max(initial=0.0)), 0.0)
    if excess(low) <= 0:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        if excess(middle) > 0:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True)
class Noised:
    """A client adds ``weight`` · (its number + discrete Gaussian noise of ``sigma`` steps)."""

    sigma: float
    weight: int = 1

    def law(self) -> Floats:
        """Of what its noise adds, on integers around 0."""
        reach = math.ceil(_REACH * self.sigma)
        masses = np.exp(-((np.arange(-reach, reach + 1) / self.sigma) ** 2) / 2)
        stretched = np.zeros(2 * reach * self.weight + 1)
        stretched[:: self.weight] = masses / masses.sum()
        return stretched


def noised_sum(victim: Noised, others: Sequence[Noised], moved: float) -> Seen:
    """One number of a sum, in which the victim's own is 0 or ``moved`` steps."""
    parts = (victim, *others)
    if all(part.sigma * victim.weight > _FINE * other.weight for part in parts for other in parts):
        spread = math.sqrt(sum((part.weight * part.sigma) ** 2 for part in parts))
        return normal_sum(victim.weight * moved / spread)
    total = victim.law()
    for part in others:
        total = signal.fftconvolve(total, part.law()).clip(0)
    gap = np.zeros(victim.weight * int(moved))
    return Seen(np.append(total, gap), np.append(gap, total))


def normal_sum(distance: float) -> Seen:
    """Noise too fine for its steps to be seen: normal, moved by ``distance`` deviations."""
    x = np.linspace(-_REACH - distance, _REACH + distance, 20_001)
    return Seen(np.diff(_normal(x + distance / 2)), np.diff(_normal(x - distance / 2)))


def _normal(x: Floats) -> Floats:
    return np.exp(log_ndtr(x))


@dataclass(frozen=True)
class Labelled:
    """A client's label of one image, randomised with ``epsilon`` among ``categories``."""

    epsilon: float
    categories: int

    def law(self, label: int) -> Floats:
        """Of its report, where ``label`` is the truth, (3,): label 0, label 1, another."""
        each = 1 / (math.expm1(self.epsilon) + self.categories)
        law = np.array([each, each, (self.categories - 2) * each])
        law[min(label, 2)] += math.expm1(self.epsilon) * each
        return law


def labelled_sum(victim: Labelled, others: Sequence[Labelled]) -> Seen:
    """The histogram of an image that the victim labels 0 or 1, beside what helps it least."""
    found = []
    for truths in ((0,), (1,), (2,), (0, 1)):
        if max(truths) < victim.categories:
            # By how many reports of 0 and of 1 are in it, of which the rest follows.
            counts = np.ones((1, 1))
            for number, other in enumerate(others):
                counts = _with_report(counts, other.law(truths[number % len(truths)]))
            one, two = (_with_report(counts, victim.law(label)).ravel() for label in (0, 1))
            found.append(Seen(one, two))
    return max(found, key=lambda seen: epsilon_of([(seen, 1)], 1e-6))


def _with_report(counts: Floats, law: Floats) -> Floats:
    more = np.zeros((counts.shape[0] + 1, counts.shape[1] + 1))
    more[1:, :-1] += law[0] * counts
    more[:-1, 1:] += law[1] * counts
    more[:-1, :-1] += law[2] * counts
    return more


def bits_sum(gamma: float, others: Sequence[float]) -> Seen:
    """The count of ones in a bit that the victim keeps with ½ + ``gamma``; others all have a 1."""
    law = np.ones(1)
    for each in others:
        law = np.convolve(law, [0.5 - each, 0.5 + each])
    one = np.convolve(law, [0.5 - gamma, 0.5 + gamma])
    return Seen(one, np.convolve(law, [0.5 + gamma, 0.5 - gamma]))
