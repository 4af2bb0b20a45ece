"""Federated averaging, the client: local SGD, optionally with a proximal term (FedProx).

McMahan et al., "Communication-efficient learning of deep networks from decentralized data",
AISTATS 2017. Li et al., "Federated optimization in heterogeneous networks", MLSys 2020: the local
loss gains (μ/2)·‖w − w_global‖². No protection: the statement of every such run says so.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clients.base import Client, ClientSetup, LocalData, Task
from learning.contribution import WeightCodec
from privacy.events import Event, NonPrivateEvent
from privacy.noise import NoiseGenerator


class FedAvgClient(Client):
    """Answers with its locally trained weights, weighted by its number of examples."""

    def __init__(
        self,
        setup: ClientSetup,
        *,
        epochs: int | None,
        steps: int | None,
        batch_size: int,
        learning_rate: float,
        proximal_mu: float,
    ) -> None:
        super().__init__(setup)
        if setup.budget.is_private:
            raise ValueError(
                f"epsilon={setup.budget.epsilon}: federated averaging adds no noise, so no "
                "finite budget can be kept; set privacy=none, or choose a private strategy"
            )
        self.epochs, self.steps = epochs, steps
        self.batch_size, self.learning_rate = batch_size, learning_rate
        self.proximal_mu = proximal_mu

    def codec(self, task: Task) -> WeightCodec:
        """All parameters (d,)."""
        return WeightCodec(self.trainer.num_parameters)

    def event(self, task: Task, data: LocalData) -> Event:
        """Weights leave as they are."""
        self.require_model(task)
        return NonPrivateEvent()

    def train(self, task: Task, data: LocalData) -> NDArray[np.float32]:
        """Parameters (d,) after local training."""
        self.trainer.load(self.require_model(task))
        self.trainer.train(
            data.images,
            data.labels,
            indices=data.indices,
            rng=self.rng(task, "local training"),
            epochs=self.epochs,
            steps=self.steps,
            batch_size=self.batch_size,
            lr=self.learning_rate,
            proximal_mu=self.proximal_mu,
        )
        return self.trainer.parameters()

    def privatize(
        self, update: NDArray[np.float32], task: Task, noise: NoiseGenerator
    ) -> NDArray[np.float32]:
        """The weights themselves."""
        return update

    def weight(self, data: LocalData) -> int:
        """n_i, public in this baseline."""
        return len(data)
