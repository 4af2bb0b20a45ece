"""No federation, the client: train alone, round after round, and report the test score.

The reference that says what federation adds. The client's model stays on its own disk; what
leaves is how many examples of the public test set it gets right. A simulation's reference run,
not a method: it is not private.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clients.base import Task, TaskError
from clients.fedavg import FedAvgClient
from murmur.learning.codec import WeightCodec
from murmur.privacy.noise import NoiseGenerator


class LocalOnlyClient(FedAvgClient):
    """Answers with its own model's accuracy on the shared test set."""

    def codec(self, task: Task) -> WeightCodec:
        """One number: the share of test examples that the client's model gets right."""
        return WeightCodec(1, bound=1.0)

    def start(self, task: Task) -> NDArray[np.float32]:
        """The client's own model, which it trains further."""
        own = self.setup.memory.load(task.client, task.round - 1)
        return self.require_model(task) if own is None else own["model"]

    def result(self, model: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
        """The accuracy (1,) of the client's own model on the test set."""
        if self.setup.test is None:
            raise TaskError("strategy=local_only needs a test set on the client")
        self.setup.memory.save(task.client, task.round, {"model": model})
        return np.array([self.trainer.evaluate(*self.setup.test).accuracy], np.float32)

    def privatize(
        self, update: NDArray[np.float32], task: Task, noise: NoiseGenerator
    ) -> NDArray[np.float32]:
        """The accuracy itself."""
        return update

    def weight(self, client: int) -> int:
        """Every client counts alike."""
        return 1
