"""Federated deep embedded clustering, the client: train the autoencoder on images without labels.

Xie et al., ICML 2016 (``murmur.learning.clustering`` has the losses). Targets P are computed once
per round from the model that arrived and the server's public cluster frequencies.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clients.base import ClientSetup, Event, LocalData, Task, TaskError
from clients.fedavg import FedAvgClient
from clients.local_training import LocalSgd
from murmur.learning.clustering import assignments, clustering_model, target_distribution
from murmur.privacy.protection import Protection


class ClusteringClient(FedAvgClient):
    """Answers with the update of local training, as the protection leaves it.

    Labels of the data are never read. ValueError for a model that is no autoencoder with centroids.

    Args:
        setup, local, protection: as for ``FedAvgClient``; the optimiser is Adam.
        pretrain_rounds: rounds of reconstruction only, the same as the server's.
        clustering_weight: γ of the clustering loss in the rounds after them, at least 0.
    """

    def __init__(
        self,
        setup: ClientSetup,
        *,
        local: LocalSgd,
        protection: Callable[..., Protection],
        pretrain_rounds: int,
        clustering_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)],
    ) -> None:
        super().__init__(setup, local=local, protection=protection)
        self.module = clustering_model(setup.trainer)
        self.pretrain_rounds = pretrain_rounds
        self.clustering_weight = clustering_weight

    def event(self, task: Task) -> Event:
        """Price of the protected update.

        TaskError unless the task has the clusters' frequencies, float64 (k,) above 0.
        """
        self._frequencies(task)
        return super().event(task)

    def train(self, task: Task, data: LocalData) -> NDArray:
        """The update (d,) of local training; no update where it diverges.

        The targets P follow once from the model that arrived, and stay for all epochs. No update
        either where they are none: a server's model or frequencies may make them overflow for some
        images, and whether a client answers must not tell of its own.
        """
        self.trainer.load(self.require_model(task))
        images = data.images[data.indices]
        with np.errstate(over="ignore", invalid="ignore"):
            soft = assignments(self.trainer, images)
            targets = target_distribution(soft, self._frequencies(task))
        if not np.allclose(targets.sum(axis=1), 1, atol=1e-3):
            return np.zeros(len(task.model))
        pretraining = task.round <= self.pretrain_rounds
        self.module.clustering_weight = 0.0 if pretraining else self.clustering_weight
        trained = self.trainer.train(
            images,
            targets,
            rng=self.rng(task, "local training"),
            optimizer="adam",
            soft_targets=True,
            **self.training.how,
        )
        update = np.subtract(trained, task.model, dtype=np.float64)
        return update if np.isfinite(update).all() else np.zeros(len(update))

    def train_ahead(self, asked: Sequence[tuple[Task, LocalData]]) -> None:
        """Nothing: Adam is not for stacks."""

    def _frequencies(self, task: Task) -> NDArray[np.float64]:
        values = self.array(task, "frequencies", np.float64, (self.trainer.num_classes,))
        if not (values > 0).all():
            raise TaskError("frequencies: must be above 0")
        return values
