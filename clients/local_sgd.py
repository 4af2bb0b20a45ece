"""What the clients that train by plain local SGD have in common: they can train as a stack."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.base import Client, ClientSetup, LocalData, Task
from murmur.common import require_positive
from murmur.learning.training.batches import count_steps
from murmur.learning.training.stack import Share


class LocalSgdClient(Client):
    """Local SGD from the server's model, then whatever an algorithm makes of the result.

    Training that diverges, which some data may do and others not, counts as no training at all:
    its result is the model that it started from.

    ``epochs``, ``steps``: passes or steps, one of the two. ``proximal_mu``: pull towards the start.
    All of it is ``sgd``, in the trainer's terms.
    """

    def __init__(
        self,
        setup: ClientSetup,
        *,
        batch_size: int,
        learning_rate: float,
        epochs: int | None = None,
        steps: int | None = None,
        proximal_mu: float = 0.0,
    ) -> None:
        super().__init__(setup)
        count_steps(epochs, steps, 1, batch_size)  # refuses what cannot be trained
        require_positive("learning_rate", learning_rate)
        self.sgd: dict[str, Any] = {
            "batch_size": batch_size,
            "lr": learning_rate,
            "epochs": epochs,
            "steps": steps,
            "proximal_mu": proximal_mu,
        }
        self._ahead: dict[tuple[int, int], NDArray[np.float32]] = {}

    @abstractmethod
    def result(self, model: NDArray[np.float32], task: Task) -> NDArray:
        """What ``train`` returns for the trained ``model`` (d,), which the trainer holds, too."""

    def start(self, task: Task) -> NDArray[np.float32]:
        """The parameters (d,) from which local training starts."""
        return self.require_model(task)

    def correction(self, task: Task) -> NDArray[np.float32] | None:
        """What is added to the gradient (d,) in every local step; nothing by default."""
        return None

    def train(self, task: Task, data: LocalData) -> NDArray:
        """The result of local training, which may have been done ahead."""
        model = self._ahead.pop((task.round, task.client), None)
        if model is None:
            self.trainer.load(self.start(task))
            self.trainer.train(
                data.images,
                data.labels,
                indices=data.indices,
                rng=self.rng(task, "local training"),
                correction=self.correction(task),
                **self.sgd,
            )
            model = self.trainer.parameters()
        model = model if np.isfinite(model).all() else self.start(task)
        self.trainer.load(model)
        return self.result(model, task)

    def train_ahead(self, asked: Sequence[tuple[Task, LocalData]]) -> None:
        """See ``Client``: all of them as one stack, where the model allows it."""
        self._ahead.clear()
        stack = self.trainer.stack
        if stack is None:
            return
        shares = [
            Share(
                self.start(task),
                data.indices,
                self.rng(task, "local training"),
                self.correction(task),
            )
            for task, data in asked
        ]
        data = asked[0][1]
        models = stack.train(data.images, data.labels, shares, **self.sgd)
        for (task, _), model in zip(asked, models, strict=True):
            self._ahead[task.round, task.client] = model
