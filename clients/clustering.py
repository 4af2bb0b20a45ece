"""Federated deep embedded clustering, the client: train the autoencoder on images without labels.

Xie et al., ICML 2016 (``murmur.learning.clustering`` has the losses). Targets P are computed once
per round from the model that arrived and the server's public cluster frequencies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.base import ClientSetup, LocalData, Task, TaskError
from clients.fedavg import FedAvgClient
from murmur.learning.clustering import assignments, clustering_model, target_distribution
from murmur.privacy.events import Event


class ClusteringClient(FedAvgClient):
    """Answers with the update of local training, as the protection leaves it.

    ``pretrain_rounds``: rounds of reconstruction only. ``clustering_weight`` γ: afterwards.
    """

    def __init__(
        self,
        setup: ClientSetup,
        *,
        epochs: int,
        batch_size: int,
        learning_rate: float,
        pretrain_rounds: int,
        clustering_weight: float,
        **averaging: Any,
    ) -> None:
        super().__init__(
            setup,
            epochs=epochs,
            steps=None,
            batch_size=batch_size,
            learning_rate=learning_rate,
            proximal_mu=0.0,
            **averaging,
        )
        self.module = clustering_model(setup.trainer)
        if not 0 <= clustering_weight < np.inf:
            raise ValueError(f"clustering_weight={clustering_weight}: must be at least 0")
        self.pretrain_rounds, self.clustering_weight = pretrain_rounds, clustering_weight

    def event(self, task: Task) -> Event:
        """What the protection leaves of the update."""
        self._frequencies(task)
        return super().event(task)

    def train(self, task: Task, data: LocalData) -> NDArray:
        """The update (d,) of local training."""
        self.trainer.load(self.require_model(task))
        images = data.images[data.indices]
        soft = assignments(self.trainer, images)
        if not np.isfinite(soft).all():
            return self.result(task.model, task)
        pretraining = task.round <= self.pretrain_rounds
        self.module.clustering_weight = 0.0 if pretraining else self.clustering_weight
        self.trainer.train(
            images,
            target_distribution(soft, self._frequencies(task)),
            rng=self.rng(task, "local training"),
            optimizer="adam",
            soft_targets=True,
            **self.sgd,
        )
        model = self.trainer.parameters()
        return self.result(model if np.isfinite(model).all() else task.model, task)

    def _frequencies(self, task: Task) -> NDArray[np.float64]:
        values = task.arrays.get("frequencies")
        shape = (self.trainer.num_classes,)
        if values is None or values.dtype != np.float64 or values.shape != shape:
            raise TaskError(f"frequencies: must be float64{list(shape)}")
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise TaskError("frequencies: must be finite and above 0")
        return values
