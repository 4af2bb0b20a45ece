"""Federated averaging, the client: local SGD, optionally with a proximal term (FedProx).

McMahan et al., "Communication-efficient learning of deep networks from decentralized data",
AISTATS 2017. Li et al., "Federated optimization in heterogeneous networks", MLSys 2020: the local
loss gains (μ/2)·‖w − w_global‖². No protection: the statement of every such run says so.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clients.base import ClientSetup, Task
from clients.local_sgd import LocalSgdClient
from learning.contribution import WeightCodec
from privacy.events import Event, NonPrivateEvent
from privacy.noise import NoiseGenerator


class FedAvgClient(LocalSgdClient):
    """Answers with its locally trained weights, weighted by its public number of examples."""

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
        super().__init__(
            setup,
            epochs=epochs,
            steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            proximal_mu=proximal_mu,
        )
        if setup.budget.is_private:
            raise ValueError(
                f"epsilon={setup.budget.epsilon}: federated averaging adds no noise, so no "
                "finite budget can be kept; set privacy=none, or choose a private strategy"
            )

    def codec(self, task: Task) -> WeightCodec:
        """All parameters (d,)."""
        return WeightCodec(self.trainer.num_parameters)

    def event(self, task: Task) -> Event:
        """Weights leave as they are."""
        self.require_model(task)
        return NonPrivateEvent()

    def result(self, model: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
        """Parameters (d,) after local training."""
        return model

    def privatize(
        self, update: NDArray[np.float32], task: Task, noise: NoiseGenerator
    ) -> NDArray[np.float32]:
        """The weights themselves."""
        return update

    def weight(self, client: int) -> int:
        """n_i where sizes are public; else every client counts alike."""
        return 1 if self.setup.client_sizes is None else self.size(client)
