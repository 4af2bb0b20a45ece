"""What one client releases, and its price: an exact integer vector of norm at most 2²⁰, noised.

Both halves need it: the client adds its share of the noise, the server states it and reads the sum.
Exchanging a client replaces one vector of norm 1 by another: Δ = 2.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from murmur.learning.codec import LARGEST, GridCodec
from murmur.privacy.budget import Budget
from murmur.privacy.events import Event, NonPrivateEvent
from murmur.privacy.mechanisms.clipped_grid import CLIP_STEPS, truncate
from murmur.privacy.mechanisms.distributed_gaussian import DistributedGaussian
from murmur.privacy.noise import NoiseGenerator


class StatisticsRelease:
    """The release of a matrix (k, C) of norm 1 under ``budget``.

    ``components``: k, how many of the ``features`` are released, the first ones; None: all. The
    noise on an entry is the same whatever k, and what little norm there is goes to the first
    components of whitened features at once: few clients do better with few of them.

    Raises ValueError where clients would release more than once, k is out of range, or no int32
    holds the noise.
    """

    def __init__(
        self, budget: Budget, features: int, classes: int, components: int | None = None
    ) -> None:
        if budget.rounds != 1:
            raise ValueError(
                f"num_rounds={budget.rounds}: class statistics are released once; set "
                "federation.num_rounds=1"
            )
        if components is not None and not 1 <= components <= features:
            raise ValueError(
                f"components={components}: must lie in 1..{features}, the number of features"
            )
        self.shape, self.noise = (components or features, classes), None
        if budget.is_private:
            self.noise = _calibrated(budget.epsilon, budget.delta_of_noise, budget.honest_clients)
        reach = 0 if self.noise is None else self.noise.reach
        if CLIP_STEPS + reach > LARGEST:
            raise ValueError(f"epsilon={budget.epsilon:g}: needs more noise than 32 bits can hold")
        self.codec = GridCodec(self.shape[0] * classes, 1 / CLIP_STEPS, CLIP_STEPS + reach, reach)

    def event(self) -> Event:
        """One client's message, to whoever reads it."""
        if self.noise is None:
            return NonPrivateEvent()
        return self.noise.release()

    def privatize(self, matrix: NDArray[np.float64], rng: NoiseGenerator) -> NDArray[np.int64]:
        """``matrix`` (k, C) of norm at most 1 as integers (k·C,), with one client's noise."""
        steps = truncate(matrix, 1.0).ravel()
        return steps if self.noise is None else self.noise.privatize_integers(steps, rng)

    def read(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """The sum of the clients' matrices, (k, C)."""
        return self.codec.mean(total, 1).reshape(self.shape)

    def sigma(self, clients: int) -> float:
        """Standard deviation of the noise on an entry of a sum over ``clients``."""
        return 0.0 if self.noise is None else self.noise.share * math.sqrt(clients) / CLIP_STEPS


@lru_cache(maxsize=64)
def _calibrated(epsilon: float, delta: float, honest_clients: int) -> DistributedGaussian:
    return DistributedGaussian.calibrated(
        epsilon, delta, 2.0 * CLIP_STEPS, honest_clients=honest_clients, grid=1.0
    )
