"""No federation, the server: the mean accuracy of clients that train alone. A reference run."""

from __future__ import annotations

from typing import Any

from learning.contribution import Integers, WeightCodec
from rounds.setup import ServerSetup
from strategies.algorithm import Parameters
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
