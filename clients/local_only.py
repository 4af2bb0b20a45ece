"""No federation, the client: train alone, round after round, and report the test score.

The reference that says what federation adds. The client's model stays on its own disk; what
leaves is how many examples of the public test set it gets right. A simulation's reference run,
not a method: it is not private.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from clients.base import LocalData, Task, TaskError
from clients.fedavg import FedAvgClient
from learning.contribution import WeightCodec
from privacy.noise import NoiseGenerator


class LocalOnlyClient(FedAvgClient):
    """Answers with its own model's accuracy on the shared test set."""

    def codec(self, task: Task) -> WeightCodec:
        """One number: the share of test examples that the client's model gets right."""
        return WeightCodec(1, bound=1.0)

    def start(self, task: Task) -> NDArray[np.float32]:
        """The client's own model, which it trains further."""
        path = self._path(task)
        return load_file(path)["model"] if path.exists() and task.round > 1 else task.model

    def result(self, model: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
        """The accuracy (1,) of the client's own model on the test set."""
        if self.setup.test is None:
            raise TaskError("strategy=local_only needs a test set on the client")
        path = self._path(task)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({"model": model}, path)
        return np.array([self.trainer.evaluate(*self.setup.test).accuracy], np.float32)

    def _path(self, task: Task) -> Path:
        return self.setup.state_folder / f"local-model-{task.client}.safetensors"

    def privatize(
        self, update: NDArray[np.float32], task: Task, noise: NoiseGenerator
    ) -> NDArray[np.float32]:
        """The accuracy itself."""
        return update

    def weight(self, data: LocalData) -> int:
        """Every client counts alike."""
        return 1
