"""Choosing the best of k candidates privately: exponential mechanism, permute-and-flip.

Both flip coins of probability e^(−gap), where gap = ε(max score − score)/(2Δ), Δ being how far
one score can move between neighbours. The exponential mechanism (McSherry and Talwar 2007)
proposes candidates with replacement until a coin falls heads; permute-and-flip (McKenna and
Sheldon 2020) without, which is never worse and up to twice as good in expected error.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from murmur.checks import require_finite, require_positive
from murmur.privacy.events import PureEvent
from murmur.privacy.mechanisms.exact_sampling import ONE, flip_exp, uniform_below
from murmur.privacy.noise import NoiseGenerator

# Beyond it a candidate is never chosen. A cap keeps gaps, and with them the effect of their
# rounding (a relative 2⁻⁵⁰), small: ε is exceeded by less than 2⁻³⁹.
_MAX_GAP = 1024.0


@dataclass(frozen=True)
class Selection(ABC):
    """ε-DP choice of one of k candidates by their scores.

    Attributes:
        epsilon: finite and above 0.
        sensitivity: Δ, the most by which one score can differ between neighbours.
        monotonic: neighbours move all scores in the same direction; the 2 then falls away.
    """

    epsilon: float
    sensitivity: float
    monotonic: bool = False

    def __post_init__(self) -> None:
        require_positive("epsilon", self.epsilon)
        require_positive("sensitivity", self.sensitivity)

    def event(self) -> PureEvent:
        """One choice."""
        return PureEvent(epsilon=self.epsilon)

    def privatize(self, scores: ArrayLike, rng: NoiseGenerator) -> NDArray[np.int64]:
        """Choose one candidate per row.

        Args:
            scores: finite numbers, shape (…, k); the larger, the better.
            rng: the noise stream.

        Returns:
            Indices in [0, k), shape (…).

        Raises:
            ValueError: ``scores`` has no candidates, or holds NaN or infinities.
        """
        values = np.asarray(scores, dtype=np.float64)
        if values.ndim == 0 or values.shape[-1] == 0:
            raise ValueError(f"scores of shape {values.shape}: the last axis must have an entry")
        require_finite("scores", values)
        rows = values.reshape(-1, values.shape[-1])
        rate = self.epsilon / (self.sensitivity if self.monotonic else 2 * self.sensitivity)
        gaps = np.minimum((rows.max(axis=1, keepdims=True) - rows) * rate, _MAX_GAP)
        return self._choose(gaps, rng).reshape(values.shape[:-1])

    @abstractmethod
    def _choose(self, gaps: NDArray[np.float64], rng: NoiseGenerator) -> NDArray[np.int64]:
        """Indices (rows,) for the coins' exponents ``gaps`` (rows, k)."""


class ExponentialMechanism(Selection):
    """P(i) ∝ e^(ε·score_i/(2Δ))."""

    def _choose(self, gaps: NDArray[np.float64], rng: NoiseGenerator) -> NDArray[np.int64]:
        out = np.empty(len(gaps), dtype=np.int64)
        rows = np.arange(len(gaps))
        while rows.size:
            out[rows] = uniform_below(gaps.shape[1], rows.size, rng)
            rows = rows[~flip_exp(gaps[rows, out[rows]], rng)]
        return out


class PermuteAndFlip(Selection):
    """The candidates in random order, the first whose coin falls heads."""

    def _choose(self, gaps: NDArray[np.float64], rng: NoiseGenerator) -> NDArray[np.int64]:
        heads = flip_exp(gaps.reshape(-1), rng).reshape(gaps.shape)
        # The first head in a random order is a uniform one among the heads. Random keys pick
        # it; that two keys are equal, or one the largest, has probability k²/2⁶⁴ at most.
        keys = rng.uint64(gaps.size).reshape(gaps.shape)
        keys[~heads] = ONE - 1
        return np.argmin(keys, axis=1)
