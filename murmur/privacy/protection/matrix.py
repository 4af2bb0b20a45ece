"""Matrix factorisation: a trusted server's noise cancels itself from round to round (DP-FTRL).

Kairouz, McMahan, Song, Thakkar, Thakurta, Xu, "Practical and private (deep) learning without
sampling or shuffling", ICML 2021. Choquette-Choo et al., "(Amplified) banded matrix factorization",
NeurIPS 2023. Kalinin and Lampert, "Banded square root matrix factorization", NeurIPS 2024.

What training follows are the prefix sums A X of the rounds' sums X (A: ones on and below the
diagonal). With A = B C, C lower triangular, releasing C X + Z and multiplying by B gives less noise
than Z on every round. C is Toeplitz with the first b coefficients of √A,

    c_0 = 1,  c_k = c_{k−1} (2k − 1)/2k,

in steps of 2⁻⁸, so that C X + Z are integers; what a round publishes, o_t = ((C X + Z)_t −
Σ_{k=1}^{b−1} c_k o_{t−k})/c_0, is computed from them alone.

A client that is asked in the rounds S moves C X by at most √(Σ_{s,t∈S} (CᵀC)_st) norms: all entries
are at least 0, and its updates have norm C at most. Over the rounds' known patterns the largest is
the sensitivity of the whole run, which is one Gaussian release. Nothing relies on secret cohorts.
Rotating cohorts keep a client's rounds b apart, where the columns of C do not overlap.
"""

import math
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.privacy import events
from murmur.privacy.accounting.calibrate import discrete_noise_multiplier
from murmur.privacy.budget import Budget, Cohorts
from murmur.privacy.guarantee import Exposure
from murmur.privacy.mechanisms.clipping import CLIP_STEPS
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.protection.base import Integers
from murmur.privacy.protection.central import ServerNoise

_STEPS = 1 << 8


def band(width: int) -> Integers:
    """c_0 … c_{width−1} in steps of 2⁻⁸, rounded; shape (width,)."""
    ratios = [(2 * k - 1) / (2 * k) for k in range(1, width)]
    return np.rint(np.cumprod([1.0, *ratios]) * _STEPS).astype(np.int64)


def overlap(coefficients: Integers, rounds: int) -> NDArray[np.float64]:
    """(CᵀC)_st for all pairs of rounds, in squared steps; shape (rounds, rounds)."""
    matrix = np.zeros((rounds, rounds))
    for k, value in enumerate(coefficients[:rounds]):
        matrix += value * np.eye(rounds, k=-k)
    return matrix.T @ matrix


class MatrixFactorization(ServerNoise):
    """Noise that is correlated over rounds.

    ``bands``: b; None for as many rounds as lie between two of the most frequent client's.
    """

    name = "banded matrix factorisation"
    claim = (
        "all published models together are (ε, δ)-differentially private for a client, where the "
        "server is trusted, whoever knows the cohorts (Kairouz et al. 2021)"
    )
    difference = "by rounding only, against whom the claim is made; a curious server sees updates."
    extendable = False

    def __init__(
        self,
        budget: Budget,
        cohorts: Cohorts,
        *,
        clipping: Mapping[str, Any],
        noise_multiplier: float | None = None,
        bands: int | None = None,
    ) -> None:
        if cohorts.rate is not None:
            raise ValueError(
                "schedule=poisson: matrix factorisation counts the rounds in which a client is "
                "asked; set federation.schedule=rotate (or random)"
            )
        if bands is not None and bands < 1:
            raise ValueError(f"bands={bands}: must be at least 1, or null")
        super().__init__(budget, cohorts, clipping=clipping, noise_multiplier=noise_multiplier)
        if self.clipping.adaptive:
            raise ValueError(
                "clipping.adaptive=true: rounds of different norms cannot share their noise; set "
                "protection.clipping.adaptive=false"
            )
        self.coefficients = band(self._bands(bands))
        # What earlier rounds held and published, newest first: (b − 1, d).
        self.sums: Integers = np.zeros((0, 0), np.int64)
        self.outputs: NDArray[np.float64] = np.zeros((0, 0))

    def calibrate(self) -> float:
        """z: σ over the sensitivity of all rounds together, divided by √rounds.

        Every round draws noise for all of them, which are one release.
        """
        budget = self.budget
        together = discrete_noise_multiplier(budget.epsilon, budget.delta, budget.rounds)
        return together / math.sqrt(budget.rounds)  # every round draws noise for all of them

    def _bands(self, given: int | None) -> int:
        """b: as ``given``, but no wider than any client's rounds lie apart, nor than the run."""
        gaps = [
            later - earlier
            for pattern in self.cohorts.patterns()
            for earlier, later in pairwise(pattern)
        ]
        widest = min(gaps, default=self.budget.rounds)
        if given is None:
            given = widest
        return min(given, self.budget.rounds)

    @cached_property
    def _pairs(self) -> NDArray[np.float64]:
        return overlap(self.coefficients, self.budget.rounds)

    def sensitivity(self, rounds: int) -> float:
        """How far one client's first ``rounds`` rounds can move C X, in grid steps."""
        squares = [0.0]
        for pattern in self.cohorts.patterns():
            own = [number - 1 for number in pattern if number <= rounds]
            squares.append(float(self._pairs[np.ix_(own, own)].sum()))
        return math.sqrt(max(squares)) * CLIP_STEPS

    @cached_property
    def sigma(self) -> int:
        """σ of Z in grid steps."""
        return math.ceil(self.noise_multiplier * self.sensitivity(self.budget.rounds))

    def noised(
        self, number: int, total: Integers, multiplier: float, noise: NoiseGenerator
    ) -> NDArray[np.float64]:
        """o_t, in steps of ``total``; with those of rounds that failed, which held nothing."""
        output = np.zeros(len(total))
        while self.rounds_published < number - 1:
            output += self._row(np.zeros_like(total), noise)
        return output + self._row(total, noise)

    def _row(self, total: Integers, noise: NoiseGenerator) -> NDArray[np.float64]:
        """One round's o_t from its own sum, and what is kept of it for those that follow.

        Shape (d,), in steps of ``total``. The noise is drawn on integers.
        """
        kept = len(self.coefficients) - 1
        if not self.rounds_published:
            self.sums = np.zeros((kept, len(total)), np.int64)
            self.outputs = np.zeros((kept, len(total)))
        first = int(self.coefficients[0])
        rest = self.coefficients[1:]
        row = first * total + rest @ self.sums
        if self.noise_multiplier:
            row = DiscreteGaussian(float(self.sigma), 1.0).privatize_integers(row, noise)
        output: NDArray[np.float64] = (row - rest @ self.outputs) / first
        self.sums = np.concatenate([total[None], self.sums])[:kept]
        self.outputs = np.concatenate([output[None], self.outputs])[:kept]
        self.rounds_published += 1
        return output

    def noise_on_a_sum(self) -> float:
        """σ of a round by itself; what later rounds cancel of it is not taken off."""
        return float(self.sigma) / (int(self.coefficients[0]) * CLIP_STEPS)

    def _event(self, rounds: int) -> events.Event:
        """The first ``rounds`` rounds: one Gaussian release, cut into rounds for its length."""
        if not self.noise_multiplier:
            return events.NonPrivateEvent()
        each = max(self.sensitivity(rounds), 1.0) / math.sqrt(rounds)
        noise = events.RepeatedEvent(events.DiscreteGaussianEvent(float(self.sigma), each), rounds)
        return events.Release(noise, events.Unit.CLIENT, self.adjacency)

    def published(self, participations: Mapping[int, int]) -> list[Exposure]:
        """The models, to whoever knows all cohorts."""
        return [self.exposure(self._event(1), {"each client": self.spent(participations)})]

    def spent(self, participations: Mapping[int, int]) -> events.Event:
        """All rounds so far, for the most exposed client."""
        if not self.rounds_published:
            return events.ComposedEvent(())
        return self._event(self.rounds_published)

    def planned(self) -> events.Event:
        """All rounds."""
        return self._event(self.budget.rounds)

    def state(self) -> dict[str, NDArray]:
        """Sums of earlier rounds, and how many there were."""
        return {**super().state(), "sums": self.sums, "outputs": self.outputs}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Restore the value of ``state``."""
        super().restore(state)
        self.sums = state["sums"].copy()
        self.outputs = state["outputs"].copy()

    def forget(self) -> None:
        """Forget the sums of the rounds before noise."""
        self.sums = np.zeros((0, 0), np.int64)
