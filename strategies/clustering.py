"""Federated deep embedded clustering, the server: average the autoencoders, place the centroids.

McMahan et al., AISTATS 2017, with the losses of Xie et al., ICML 2016
(``murmur.learning.clustering``). One round:

1. broadcast the model and f_j, the clusters' frequencies on the public pool
2. clients train without labels                                        (``clients.clustering``)
3. w ← step(w, mean of w_i − w)                                       (``strategies.fedavg``)
4. after the last of ``pretrain_rounds``: centroids ← k-means of the public pool's latents

Labels of the server's test set are used to report, never to train.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from murmur.learning import clustering
from murmur.privacy.protection import Protection
from murmur.random import experiment_rng
from murmur.round.server_step import Sgd
from murmur.settings import Count
from strategies.base import Parameters, ServerSetup
from strategies.fedavg import FedAvg


class Clustering(FedAvg):
    """The server half. See ``conf/strategy/clustering.yaml`` for every knob.

    The model is an autoencoder with centroids in its latent space; the update of both travels, as
    the protection leaves it. ValueError for another model, or for fewer public images than
    clusters.

    Args:
        setup: What the ServerApp gives; its public pool places the centroids.
        server_step, protection: As in ``FedAvg``.
        pretrain_rounds: Rounds of reconstruction alone, at least 1; after them the centroids are
            placed.
    """

    algorithm = "federated deep embedded clustering"

    def __init__(
        self,
        setup: ServerSetup,
        *,
        server_step: Sgd,
        protection: Callable[..., Protection],
        pretrain_rounds: Count,
    ) -> None:
        super().__init__(setup, server_step=server_step, protection=protection)
        clusters = len(clustering.clustering_model(setup.trainer).centroids)
        if len(setup.public) < clusters:
            raise ValueError(
                f"public={len(setup.public)}: at least {clusters} public images must place the "
                "centroids (federation.public)"
            )
        self.pretrain_rounds = pretrain_rounds
        self.placed = False

    def task(self, number: int, model: Parameters) -> tuple[dict[str, NDArray], dict[str, int]]:
        """The clusters' frequencies (k,) on the public pool, beside what averaging needs.

        Float64, and public: from the model and the pool. Clients sharpen their assignments by them.
        """
        arrays, settings = super().task(number, model)
        self.trainer.load(model)
        frequencies = clustering.assignments(self.trainer, self.setup.public).mean(axis=0)
        return {**arrays, "frequencies": frequencies}, settings

    def apply(
        self, number: int, model: Parameters, means: Mapping[str, NDArray[np.float64]]
    ) -> Parameters:
        """The server's step, with new centroids when the pretraining ends.

        If that very round does not count, the next one that does places them.
        """
        mean = super().apply(number, model, means)
        if self.placed or number < self.pretrain_rounds:
            return mean
        self.placed = True
        self.trainer.load(mean)
        rng = experiment_rng(self.setup.seed, "centroids", number)
        return clustering.place_centroids(self.trainer, self.setup.public, rng)

    def evaluate(self, model: Parameters) -> dict[str, float]:
        """Reconstruction loss and clustering accuracy on the server's test set.

        Accuracy is that of the best matching of clusters to classes.
        """
        self.trainer.load(model)
        test = self.setup.test
        found = clustering.assignments(self.trainer, test.images).argmax(axis=1)
        return {
            "accuracy": clustering.clustering_accuracy(found, test.labels),
            "loss": clustering.reconstruction_loss(self.trainer, test.images),
        }

    def state(self) -> dict[str, NDArray]:
        """Returns the state of averaging, and whether the centroids are placed."""
        return {**super().state(), "placed": np.array([self.placed])}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The inverse of ``state``."""
        super().restore(state)
        self.placed = bool(state["placed"][0])
