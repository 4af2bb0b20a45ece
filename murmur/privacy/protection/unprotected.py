"""No protection: for baselines. The statement of such a run says so."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from murmur.privacy.budget import Budget
from murmur.privacy.cohorts import Cohorts
from murmur.privacy.events import Event, NonPrivateEvent
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.protection.base import Protection


class Unprotected(Protection):
    """Vectors leave as they are, weighted by public numbers of examples."""

    name = "no protection"
    weighted = True

    def __init__(self, budget: Budget, cohorts: Cohorts) -> None:
        if budget.is_private:
            raise ValueError(
                f"epsilon={budget.epsilon}: without protection no finite budget can be kept; set "
                "privacy=none, or choose protection=central, distributed or matrix"
            )
        super().__init__(budget, cohorts)

    def release_event(self) -> Event:
        """Nothing protects it."""
        return NonPrivateEvent()

    def release(
        self, vector: NDArray[np.float64], clip: float | None, noise: NoiseGenerator
    ) -> NDArray[np.float64]:
        """The vector itself."""
        return vector

    def mean(
        self, number: int, total: NDArray[np.int64], weight: int, noise: NoiseGenerator
    ) -> NDArray[np.float64]:
        """The weighted mean."""
        return total / weight
