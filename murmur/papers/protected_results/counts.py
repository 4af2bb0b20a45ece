"""Protected evaluation counts: how many of its examples a client's model gets right.

(right, wrong) plus integer noise. Replacing one record can turn a right one into a wrong one: L1
distance 2, L2 √2. Replacing the client can change all of at most m examples: m times that.

``laplace``: discrete Laplace noise on each client's own counts, pure ε. ``gaussian``: discrete
Gaussian noise, (ε, δ), of which a client adds its share where the server sees sums only
(``murmur.privacy.mechanisms.distributed_gaussian``), and all of it where it reads messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.common import require_positive
from murmur.learning.codec import LARGEST, GridCodec
from murmur.papers.protected_results.settings import UNITS
from murmur.privacy.budget import Budget
from murmur.privacy.events import Adjacency, Event, Release, Unit
from murmur.privacy.mechanisms import DiscreteLaplace
from murmur.privacy.mechanisms.distributed_gaussian import DistributedGaussian
from murmur.privacy.noise import NoiseGenerator

NOISES = ("laplace", "gaussian")


@dataclass(frozen=True)
class ProtectedCounts:
    """Counts of right and wrong predictions under ``epsilon``-DP, replace-one.

    Attributes:
        epsilon: ε of one release.
        unit: ``client`` or ``record``.
        examples: m, the most examples that a client counts.
        noise: one of ``NOISES``.
        delta: δ of one release, for ``gaussian``.
        honest_clients: how many share the noise of a sum, for ``gaussian``.
    """

    epsilon: float
    unit: str
    examples: int
    noise: str = "laplace"
    delta: float = 0.0
    honest_clients: int = 1

    def __post_init__(self) -> None:
        require_positive("epsilon", self.epsilon)
        if self.unit not in UNITS:
            raise ValueError(f"unit={self.unit}: must be one of {', '.join(UNITS)}")
        if self.noise not in NOISES:
            raise ValueError(f"noise={self.noise}: must be one of {', '.join(NOISES)}")
        if not 1 <= self.examples <= 1 << 20:
            raise ValueError(f"examples={self.examples}: must lie in 1..2^20")
        largest = 16 * 2.0 * self._changed  # the noise's scale is at least a 16th of a count
        if self.epsilon > largest:
            raise ValueError(f"epsilon={self.epsilon}: must be at most {largest:g} for counts")

    @classmethod
    def of(cls, settings: Mapping[str, Any], budget: Budget) -> ProtectedCounts:
        """From ``settings``; who shares the noise of a sum follows from the run's ``budget``."""
        if settings.get("noise", "laplace") == "laplace":
            return cls(**settings)
        return cls(**settings, delta=budget.delta_of_noise, honest_clients=budget.honest_clients)

    @property
    def is_summed(self) -> bool:
        """Whether the server needs the clients' sum only."""
        return self.noise == "gaussian"

    def privatize(self, counts: NDArray[np.int64], rng: NoiseGenerator) -> NDArray[np.int64]:
        """The release (2,) of the counts (2,); ValueError unless they are counts of 1 to m."""
        counts = np.asarray(counts)
        if counts.shape != (2,) or counts.dtype.kind not in "iu" or counts.min() < 0:
            raise ValueError(f"counts={counts.dtype}{list(counts.shape)}: must be two counts")
        if not 1 <= counts.sum() <= self.examples:
            raise ValueError(f"counts: must be of 1 to examples={self.examples} predictions")
        steps = counts.astype(np.int64) * round(1 / self.codec.grid)
        return self._mechanism.privatize_integers(steps, rng)

    @cached_property
    def codec(self) -> GridCodec:
        """Two counts, in steps of the noise's grid."""
        mechanism = self._mechanism
        if isinstance(mechanism, DiscreteLaplace):
            return GridCodec(2)
        bound = round(self.examples / mechanism.grid) + mechanism.reach
        if bound > LARGEST:
            raise ValueError(f"examples={self.examples}: with their noise exceed 32 bits; lower it")
        return GridCodec(2, mechanism.grid, bound, mechanism.reach)

    def deviation(self, clients: int) -> float:
        """The standard deviation of the noise on one count of a sum over ``clients``, at most."""
        mechanism, root = self._mechanism, math.sqrt(clients)
        if isinstance(mechanism, DiscreteLaplace):
            return math.sqrt(2) * mechanism.scale * root
        return mechanism.share * mechanism.grid * root

    def event(self) -> Event:
        """One release of both counts, to whoever reads it."""
        mechanism, unit = self._mechanism, Unit(self.unit)
        if isinstance(mechanism, DiscreteLaplace):
            return Release(mechanism.event(), unit, Adjacency.REPLACE_ONE)
        return mechanism.release(unit)

    @property
    def _changed(self) -> int:
        """How many examples may turn from right to wrong."""
        return self.examples if self.unit == "client" else 1

    @cached_property
    def _mechanism(self) -> DiscreteLaplace | DistributedGaussian:
        if not self.is_summed:
            return DiscreteLaplace.calibrated(self.epsilon, 2.0 * self._changed)
        change = math.sqrt(2) * self._changed
        honest = self.honest_clients
        return DistributedGaussian.calibrated(  # a count is a whole number of steps
            self.epsilon, self.delta, change, honest_clients=honest, coarsest=1.0
        )
