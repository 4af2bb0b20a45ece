"""Federated averaging, the server: the mean of the clients' weights, by number of examples.

McMahan et al., AISTATS 2017. With a proximal term on the clients it is FedProx (Li et al., MLSys
2020); with one client that holds all data it is centralised training. Not private.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from learning.contribution import Integers, WeightCodec
from privacy.events import Event, NonPrivateEvent
from strategies.algorithm import Parameters
from strategies.base import CohortStrategy


class FedAvg(CohortStrategy):
    """w ← Σ n_i w_i / Σ n_i."""

    algorithm = "federated averaging (no protection)"
    weighted = True

    def task(self, number: int, model: Parameters) -> tuple[dict[str, NDArray], dict[str, int]]:
        """The model is all that a client needs."""
        return {}, {}

    def codec(self) -> WeightCodec:
        """All parameters (d,)."""
        return WeightCodec(self.trainer.num_parameters)

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """The weighted mean."""
        return self.codec().mean(total, weight).astype(np.float32)

    def release_event(self) -> Event:
        """Weights leave as they are."""
        return NonPrivateEvent()
