"""PrivateKT, the client: train locally, label a few public images, randomise the labels.

Qi, Wu, Wu, He, Huang, Xie: "Differentially private knowledge transfer for federated learning",
Nature Communications 14 (2023), s41467-023-38794-x.

    ŷ = argmax f(x; Θ_local)              for the K public images that the server picked
    y* = ŷ with probability β, else uniform over all C classes                      (eq. 2)
    β = expm1(ε/K) / (expm1(ε/K) + C)                                               (eq. 6)

Symbols: K = images asked about, C = ``num_classes``, ε = the budget of one round. Noise follows
from the number of images that really arrived and from the client's own budget, never from the
server. ``clients.votes`` answers the same question for sums.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clients.base import Canary, Client, ClientSetup, Codec, Event, LocalData, Task, TaskError
from clients.local_training import LocalSgd, LocalTraining
from murmur.common import experiment_rng
from murmur.papers.privatekt import DisjointLabels, Labeller, LabelQuery, SharedLabels, way_of
from murmur.privacy.noise import NoiseGenerator


class PublicLabels:
    """A client's labels of public images, before protection; a part of clients that answer so.

    Parameters
    ----------
    client : Client
        Whose setup, trainer and streams it uses.
    local : LocalSgd
        Local training, where the labeller is not in closed form.
    labeller : Labeller
        What labels images by a model, or first fits one in closed form.
    most : int
        K, the most images that it labels in one round, however many the server sends.
    """

    def __init__(self, client: Client, local: LocalSgd, labeller: Labeller, most: int) -> None:
        self.client = client
        self.training = LocalTraining(client, local)
        self.labeller = labeller
        self.most = most

    def images(self, indices: NDArray | None) -> NDArray[np.int64]:
        """``indices`` if they may name public images (K,); TaskError otherwise.

        Int64, distinct, of the pool, and between 1 and the most that this client labels.
        """
        pool = len(self.client.setup.public)
        if indices is None or indices.dtype != np.int64 or indices.ndim != 1:
            raise TaskError("indices: the task must name public images as int64")
        if not 1 <= len(indices) <= self.most:
            raise TaskError(
                f"indices: {len(indices)} images asked for; this client labels 1 to "
                f"{self.most} a round (strategy.K)"
            )
        if indices.min() < 0 or indices.max() >= pool or len(np.unique(indices)) != len(indices):
            raise TaskError(f"indices: must be distinct and lie in 0..{pool - 1}")
        return indices

    def of(self, task: Task, data: LocalData, images: NDArray[np.int64]) -> NDArray[np.int64]:
        """Labels (K,) of the public ``images`` under the locally trained model.

        These are the client's data in another form: they must not leave without a mechanism.
        """
        if self.labeller.is_closed_form:
            rows = data.images[data.indices].reshape(len(data), -1)
            start = self.client.require_model(task)
            model = self.labeller.fit(start, rows, data.labels[data.indices])
        else:
            model = self.training.train(task, data)
        self.client.trainer.load(model)
        return self.labeller.labels(self.client.setup.public[images])

    def ahead(self, asked: Sequence[tuple[Task, LocalData]]) -> None:
        """See ``Client.train_ahead``."""
        if not self.labeller.is_closed_form:
            self.training.train_ahead(asked)

    def canary(self, name: int, rows: NDArray[np.int64], total: int) -> Canary:
        """Labels at random of the ``rows`` of ``total`` that are the client's, and the next class.

        The direction is in the cells (total, C) of all rows: 1 for a label, −1 for the next class.
        """
        classes = self.client.trainer.num_classes
        rng = experiment_rng(self.client.setup.seed, "canary", client=name)
        labels = rng.integers(classes, size=len(rows))
        others = (labels + 1) % classes
        cells = np.zeros((total, classes), np.int8)
        cells[rows, labels] = 1
        cells[rows, others] = -1
        return Canary(labels, others, cells)


class PrivateKTClient(Client):
    """Answers with a randomised label for each public image that it is asked about.

    The protected unit is a client, against whoever reads its message: each label costs ε/K, and K
    is the number of images that really arrived. ValueError for settings out of range.

    Parameters
    ----------
    setup : ClientSetup
        What the host gives.
    answers : str
        "paper", where all clients have the same images, or "disjoint", where each has its own.
    K : int
        The most images that it labels in one round.
    local : LocalSgd
        Local training, with ``learner="sgd"``.
    learner, penalty, components
        Of ``Labeller``.
    """

    def __init__(
        self,
        setup: ClientSetup,
        *,
        answers: str,
        K: int,
        local: LocalSgd,
        learner: str,
        penalty: float,
        components: int | None,
    ) -> None:
        self.way = way_of(answers)
        super().__init__(setup)
        labeller = Labeller(self.trainer, learner, penalty, components)
        self.labels = PublicLabels(self, local, labeller, K)
        self.is_disjoint = self.way is DisjointLabels

    def codec(self, task: Task) -> Codec:
        """That of the way to answer: bytes, or cells of the cohort's histogram."""
        return self._answers(task).codec

    def event(self, task: Task) -> Event:
        """K randomised labels, K as in this task.

        TaskError for a question that is malformed, or does not name this client where it has to.
        """
        self.require_asked(task)
        self.require_model(task)
        return self._answers(task).event()

    def train(self, task: Task, data: LocalData) -> NDArray[np.int64]:
        """Labels (K,) of the public images under the locally trained model."""
        return self.labels.of(task, data, self._question(task)[1])

    def train_ahead(self, asked: Sequence[tuple[Task, LocalData]]) -> None:
        """See ``Client``."""
        self.labels.ahead(asked)

    def privatize(
        self, update: NDArray[np.int64], task: Task, noise: NoiseGenerator
    ) -> NDArray[np.int64]:
        """The randomised labels."""
        return self._answers(task).privatize(update, self._question(task)[0], noise)

    def canary(self, task: Task, name: int, count: int) -> Canary:
        """Labels (K,) at random, and the next class of each."""
        place, images = self._question(task)
        shape = self._answers(task).codec.shape
        rows = place * len(images) + np.arange(len(images))
        return self.labels.canary(name, rows, math.prod(shape) // self.trainer.num_classes)

    def _answers(self, task: Task) -> SharedLabels:
        images = self._question(task)[1]
        clients = len(task.arrays["clients"]) if self.is_disjoint else 1
        classes = self.trainer.num_classes
        return self.way(LabelQuery(self.setup.budget, len(images), classes, clients))

    def _question(self, task: Task) -> tuple[int, NDArray[np.int64]]:
        """The client's place among those who are asked apart, and the images (K,) it is asked."""
        indices = task.arrays.get("indices")
        if not self.is_disjoint:
            return 0, self.labels.images(indices)
        clients = task.arrays.get("clients")
        if clients is None or clients.dtype != np.int64 or clients.ndim != 1:
            raise TaskError("clients: the task must name the cohort as int64[n]")
        found = np.flatnonzero(clients == task.client)
        if len(found) != 1:
            raise TaskError("clients: must name this client once")
        if indices is None or indices.ndim != 2 or len(indices) != len(clients):
            raise TaskError("indices: the task must have a row of int64 for each client")
        return int(found[0]), self.labels.images(indices[found[0]])
