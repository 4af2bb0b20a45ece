"""NbAFL's way to protect an upload: clip the whole model, add noise to it, once in each round.

Wei et al., IEEE TIFS 15 (2020). The sensitivity is what can be proven of any local training: a
model of norm at most C becomes any other such model, 2C. So the noise protects a whole client as
well as one record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.common import require_count, require_positive
from murmur.privacy.events import (
    Adjacency,
    DiscreteGaussianEvent,
    Event,
    Release,
    RepeatedEvent,
    Unit,
)
from murmur.privacy.mechanisms.clipped_grid import CLIP_STEPS, truncate
from murmur.privacy.mechanisms.clipping import clip_l2
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.noise import NoiseGenerator

_SENSITIVITY = 2.0 * CLIP_STEPS


@dataclass(frozen=True)
class NoisyModel:
    """Releases of a clipped model, ``rounds`` times.

    Attributes:
        clip: C, the largest L2 norm.
        rounds: how often in all; the budget is for all of them.
    """

    clip: float
    rounds: int

    def __post_init__(self) -> None:
        require_positive("clip", self.clip)
        require_count("rounds", self.rounds)

    def event(self, epsilon: float, delta: float, size: int) -> Event:
        """One release at the least noise that keeps all rounds within the budget."""
        noise = DiscreteGaussianEvent(_sigma(epsilon, delta, self.rounds), _SENSITIVITY)
        return Release(noise, Unit.CLIENT, Adjacency.REPLACE_ONE)

    def describe(self, epsilon: float, delta: float, size: int) -> str:
        """The noise, in a few words."""
        multiplier = _sigma(epsilon, delta, self.rounds) / _SENSITIVITY
        return f"noise on the model, noise multiplier {multiplier:.3f}, {self.rounds} releases"

    def privatize(
        self, model: NDArray[Any], epsilon: float, delta: float, rng: NoiseGenerator
    ) -> NDArray[np.float64]:
        """``model`` (d,), clipped, with noise, on the grid C/2²⁰.

        Raises:
            ValueError: ``model`` is not finite.
        """
        steps = truncate(clip_l2(np.asarray(model, np.float64), self.clip), self.clip)
        noise = DiscreteGaussian(_sigma(epsilon, delta, self.rounds), _SENSITIVITY)
        noisy = noise.privatize_integers(steps, rng)
        return np.multiply(noisy, self.clip / CLIP_STEPS, dtype=np.float64)


@lru_cache(maxsize=256)
def _sigma(epsilon: float, delta: float, rounds: int) -> float:
    """Least σ in grid steps, a whole number."""
    from murmur.privacy.accounting import epsilon as epsilon_of
    from murmur.privacy.search import least_noise

    def cost(multiplier: float) -> float:
        one = DiscreteGaussianEvent(multiplier * _SENSITIVITY, _SENSITIVITY)
        return epsilon_of(RepeatedEvent(one, rounds), delta).epsilon

    return float(math.ceil(least_noise(cost, epsilon, 1e-2, 1e5) * _SENSITIVITY))
