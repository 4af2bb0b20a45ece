"""No federation, the server: the mean accuracy of clients that train alone. A reference run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.codec import Integers, WeightCodec
from murmur.round.setup import ServerSetup
from strategies.base import Parameters
from strategies.fedavg import FedAvg


class LocalOnly(FedAvg):
    """The global model stays what it was; the row holds the clients' mean accuracy."""

    accuracy: float | None = None

    def __init__(self, setup: ServerSetup, **averaging: Any) -> None:
        super().__init__(setup, **averaging)
        self.weighted = False

    def codec(self) -> WeightCodec:
        """One number from each client: its own model's accuracy."""
        return WeightCodec(1, bound=1.0)

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """Keep the mean accuracy; there is no global model to update."""
        self.accuracy = float(self.codec().mean(total, weight)[0])
        return model

    def evaluate(self, model: Parameters) -> dict[str, float]:
        """Mean test accuracy over the clients that answered."""
        return {} if self.accuracy is None else {"accuracy": self.accuracy}

    def state(self) -> dict[str, NDArray]:
        """The accuracy of the last round that counted, if there was one."""
        accuracy = [] if self.accuracy is None else [self.accuracy]
        return {**super().state(), "accuracy": np.array(accuracy)}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The same."""
        super().restore(state)
        self.accuracy = float(state["accuracy"][0]) if len(state["accuracy"]) else None
