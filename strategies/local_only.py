"""No federation, the server: the mean accuracy of clients that train alone. A reference run.

What federation adds is the distance from here. Clients keep their models
(``clients.local_only``); the server asks for nothing but their accuracy, which nothing protects.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from murmur.learning.codec import Integers, WeightCodec
from murmur.privacy.events import Event, NonPrivateEvent
from strategies.base import CohortStrategy, Parameters, ServerSetup


class LocalOnly(CohortStrategy):
    """The global model stays what it was; the row holds the clients' mean accuracy.

    The client half refuses a finite budget: an accuracy on the test set is sent as it is.

    Attributes:
        accuracy: Mean accuracy of the last round that counted; None before.
    """

    algorithm = "clients that train alone"

    def __init__(self, setup: ServerSetup) -> None:
        super().__init__(setup)
        self.accuracy: float | None = None  # of the last round that counted

    def codec(self) -> WeightCodec:
        """One number from each client: its own model's accuracy."""
        return WeightCodec(1, bound=1.0)

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """Keep the mean accuracy; there is no global model to update.

        ``weight``: how many clients answered, since they count alike.
        """
        self.accuracy = float(self.codec().mean(total, weight)[0])
        return model

    def evaluate(self, model: Parameters) -> dict[str, float]:
        """Mean test accuracy over the clients that answered."""
        return {} if self.accuracy is None else {"accuracy": self.accuracy}

    def release_event(self) -> Event:
        """Nothing protects an accuracy."""
        return NonPrivateEvent()

    def state(self) -> dict[str, NDArray]:
        """The accuracy, if there is one."""
        accuracy = [] if self.accuracy is None else [self.accuracy]
        return {"accuracy": np.array(accuracy)}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The inverse of ``state``."""
        self.accuracy = float(state["accuracy"][0]) if len(state["accuracy"]) else None
