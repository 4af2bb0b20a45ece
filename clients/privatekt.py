"""PrivateKT, the client: train locally, label a few public images, randomise each label.

Qi, Wu, Wu, He, Huang, Xie: "Differentially private knowledge transfer for federated learning",
Nature Communications 14 (2023), s41467-023-38794-x.

    ŷ = argmax f(x; Θ_local)              for the K public images that the server picked
    y* = ŷ with probability β, else uniform over all C classes                      (eq. 2)
    β = expm1(ε/K) / (expm1(ε/K) + C)                                               (eq. 6)

Symbols: K = ``len(indices)``, C = ``num_classes``, ε = the budget of one round. β follows from
the number of images that really arrived and from the client's own budget, never from the server.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clients.base import ClientSetup, Task, TaskError
from clients.local_sgd import LocalSgdClient
from learning.contribution import LabelCodec
from privacy.events import Event, NonPrivateEvent
from privacy.mechanisms import RandomizedResponse
from privacy.noise import NoiseGenerator


class PrivateKTClient(LocalSgdClient):
    """Answers with one randomised label for each public image asked for.

    ``epochs``, ``batch_size``, ``learning_rate``: local SGD. ``max_labels``: the most images it
    labels in one round, however many the server sends.
    """

    def __init__(
        self,
        setup: ClientSetup,
        *,
        epochs: int,
        batch_size: int,
        learning_rate: float,
        max_labels: int,
    ) -> None:
        super().__init__(setup, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
        self.max_labels = max_labels

    def codec(self, task: Task) -> LabelCodec:
        """K labels of C classes."""
        return LabelCodec(len(self._indices(task)), self.trainer.num_classes)

    def event(self, task: Task) -> Event:
        """K labels by randomised response at ε/K each."""
        self.require_asked(task)
        self.require_model(task)
        count = len(self._indices(task))
        if not self.setup.budget.is_private:
            return NonPrivateEvent()
        return self._mechanism(count).release(count)

    def result(self, model: NDArray[np.float32], task: Task) -> NDArray[np.int64]:
        """Labels (K,) of the public images under the locally trained model."""
        logits = self.trainer.logits(self.setup.public[self._indices(task)])
        return logits.argmax(axis=1)

    def privatize(
        self, update: NDArray[np.int64], task: Task, noise: NoiseGenerator
    ) -> NDArray[np.uint8]:
        """The labels after randomised response (eq. 2); unchanged where ε is infinite."""
        if not self.setup.budget.is_private:
            return update.astype(np.uint8)
        return self._mechanism(len(update)).privatize(update, noise)

    def _mechanism(self, count: int) -> RandomizedResponse:
        classes = self.trainer.num_classes
        epsilon = self.setup.budget.per_round(
            lambda each: RandomizedResponse(each / count, classes).release(count)
        )
        return RandomizedResponse(epsilon / count, classes)

    def _indices(self, task: Task) -> NDArray[np.int64]:
        indices = task.arrays.get("indices")
        pool = len(self.setup.public)
        if indices is None or indices.dtype != np.int64 or indices.ndim != 1:
            raise TaskError("indices: the task must name public images as int64[K]")
        if not 1 <= len(indices) <= self.max_labels:
            raise TaskError(
                f"indices: {len(indices)} images asked for; this client labels 1 to "
                f"{self.max_labels} a round (strategy.K)"
            )
        if indices.min() < 0 or indices.max() >= pool or len(np.unique(indices)) != len(indices):
            raise TaskError(f"indices: must be distinct and lie in 0..{pool - 1}")
        return indices
