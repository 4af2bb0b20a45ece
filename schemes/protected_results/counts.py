"""Protected evaluation counts: how many of its examples a client's model gets right.

(right, wrong) plus discrete Laplace noise on the integers. Replacing one record can turn a right
one into a wrong one: L1 distance 2. Replacing the client can change all of at most m examples:
2m.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.events import Event, Release
from privacy.mechanisms import DiscreteLaplace
from privacy.mechanisms.validation import require_positive
from privacy.neighbours import Adjacency, Unit
from privacy.noise import NoiseGenerator
from schemes.protected_results.settings import UNITS


@dataclass(frozen=True)
class ProtectedCounts:
    """Counts of right and wrong predictions under ``epsilon``-DP, replace-one.

    Attributes:
        epsilon: ε of one release.
        unit: ``client`` or ``record``.
        examples: m, the most examples that a client counts.
    """

    epsilon: float
    unit: str
    examples: int

    def __post_init__(self) -> None:
        require_positive("epsilon", self.epsilon)
        if self.unit not in UNITS:
            raise ValueError(f"unit={self.unit}: must be one of {', '.join(UNITS)}")
        if not 1 <= self.examples <= 1 << 20:
            raise ValueError(f"examples={self.examples}: must lie in 1..2^20")
        largest = 16 * self._sensitivity  # the noise's scale is at least a 16th of a count
        if self.epsilon > largest:
            raise ValueError(f"epsilon={self.epsilon}: must be at most {largest:g} for counts")

    def privatize(self, counts: NDArray[np.int64], rng: NoiseGenerator) -> NDArray[np.int64]:
        """The release (2,) of the counts (2,); ValueError unless they are counts of 1 to m."""
        counts = np.asarray(counts)
        if counts.shape != (2,) or counts.dtype.kind not in "iu" or counts.min() < 0:
            raise ValueError(f"counts={counts.dtype}{list(counts.shape)}: must be two counts")
        if not 1 <= counts.sum() <= self.examples:
            raise ValueError(f"counts: must be of 1 to examples={self.examples} predictions")
        return self._mechanism().privatize_integers(counts.astype(np.int64), rng)

    @property
    def deviation(self) -> float:
        """The standard deviation of one count's noise, at most: √2 times the scale."""
        return 2**0.5 * self._mechanism().scale

    def event(self) -> Event:
        """One release of both counts."""
        return Release(self._mechanism().event(), Unit(self.unit), Adjacency.REPLACE_ONE)

    @property
    def _sensitivity(self) -> float:
        return 2.0 * (self.examples if self.unit == "client" else 1)

    def _mechanism(self) -> DiscreteLaplace:
        return DiscreteLaplace.calibrated(self.epsilon, self._sensitivity)
