"""Noise on teachers' votes (PATE), in integers.

Papernot et al., "Semi-supervised knowledge transfer for deep learning from private training
data", ICLR 2017 (Laplace); "Scalable private learning with PATE", ICLR 2018 (Gaussian). The noise
is for one vote that moves in each query: L1 sensitivity 2, L2 √2. A record that is nulled or left
out moves no more where its teacher follows from the record alone
(``murmur.privacy.record_choice.keyed_shards``), and nothing of another teacher from it: neither its
records and their order nor its random stream. An exchange moves up to two votes then, which is more
than this noise is for.

Gaussian noise is drawn on a grid of 2⁻¹⁶ votes, from one vote on fine enough to be accounted for as
the Gaussian (``murmur.privacy.accounting.gaussian``), and what is released is rounded to
whole votes.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from murmur.checks import require_count, require_positive
from murmur.privacy.events import DiscreteGaussianEvent, Event, LaplaceEvent, RepeatedEvent
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.mechanisms.discrete_laplace import DiscreteLaplace
from murmur.privacy.noise import NoiseGenerator

_STEPS = 1 << 16  # of the Gaussian noise's grid, in a vote


@dataclass(frozen=True)
class NoisyVotes:
    """Histograms of votes for ``queries`` examples, with noise on every count.

    Attributes:
        noise: "gaussian" or "laplace", both discrete.
        scale: σ or b, in votes.
        queries: how many examples are voted on.
    """

    noise: str
    scale: float
    queries: int

    def __post_init__(self) -> None:
        if self.noise not in ("gaussian", "laplace"):
            raise ValueError(f"noise={self.noise!r}: must be 'gaussian' or 'laplace'")
        require_positive("scale", self.scale)
        require_count("queries", self.queries)

    @classmethod
    def calibrated(cls, noise: str, epsilon: float, delta: float, queries: int) -> "NoisyVotes":
        """The least noise with which all queries are (``epsilon``, ``delta``)-DP together.

        Raises:
            ValueError: an argument is out of range.
        """
        from murmur.privacy.accounting import epsilon as epsilon_of
        from murmur.privacy.search import least_noise

        def cost(scale: float) -> float:
            return epsilon_of(cls(noise, scale, queries).event(), delta).epsilon

        # Basic composition of Laplace noise, and then some for Gaussian noise at a small δ.
        highest = 100 * max(1.0, 2 * queries / epsilon)
        return cls(noise, least_noise(cost, epsilon, 0.1, highest), queries)

    def event(self) -> Event:
        """All queries."""
        if self.noise == "laplace":
            return RepeatedEvent(LaplaceEvent(self.scale / 2, 2), self.queries)
        one = DiscreteGaussianEvent(self.scale * _STEPS, math.sqrt(2) * _STEPS)
        return RepeatedEvent(one, self.queries)

    def privatize(self, votes: NDArray[np.int64], rng: NoiseGenerator) -> NDArray[np.int64]:
        """``votes`` (queries, C) plus noise; counts may become negative.

        Raises:
            ValueError: ``votes`` holds other than integers for ``queries`` examples.
        """
        if votes.ndim != 2 or len(votes) != self.queries:
            raise ValueError(f"votes of shape {votes.shape}: must be ({self.queries}, classes)")
        if self.noise == "laplace":
            return DiscreteLaplace(self.scale, 2.0).privatize_integers(votes, rng)
        fine = DiscreteGaussian(self.scale * _STEPS, math.sqrt(2) * _STEPS)
        return (fine.privatize_integers(votes * _STEPS, rng) + _STEPS // 2) // _STEPS
