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
from murmur.algorithms.privatekt.answers import AnswerKind, DisjointLabels, LabelQuery, answer_kind
from murmur.algorithms.privatekt.labeller import Labeller
from murmur.learning.linear_model import require_linear
from murmur.privacy.noise import NoiseGenerator
from murmur.random import experiment_rng


class LabelClient(Client):
    """Answers with its labels of the public images that it is asked about, in one of the ways.

    The protected unit is a client. Each answer's price and noise follow from the number of images
    that really arrived.

    Args:
        setup: tools, public data and budget, from the host.
        kind: mechanism of its answers.
        K: maximum of images that it labels in one round, however many the server sends.
        local: local training, with ``learner="sgd"``.
        labeller: labels images by a model, or first fits one in closed form.
        abstain: fraction of images, the least certain ones, that it does not label.
    """

    def __init__(
        self,
        setup: ClientSetup,
        kind: type[AnswerKind],
        K: int,
        local: LocalSgd,
        labeller: Labeller,
        abstain: float = 0.0,
    ) -> None:
        super().__init__(setup)
        if labeller.is_closed_form:
            require_linear(self.trainer, "learner=ridge")
        self.kind = kind
        self.most = K
        self.training = LocalTraining(self, local)
        self.labeller = labeller
        self.abstain = abstain

    def codec(self, task: Task) -> Codec:
        """The codec of the answers: bytes, cells of the cohort's histogram, or votes (K·C,)."""
        return self._answers(task).codec

    def event(self, task: Task) -> Event:
        """K labels or votes, K as in this task.

        TaskError for a question that is malformed, or does not name this client where it has to.
        """
        self.require_asked(task)
        self.require_model(task)
        return self._answers(task).event()

    def train(self, task: Task, data: LocalData) -> NDArray[np.int64]:
        """Labels (K,) of the public images under the locally trained model.

        These are the client's data in another form: they must not leave without a mechanism.
        """
        _, _, images = self._question(task)
        if self.labeller.is_closed_form:
            rows = data.images[data.indices].reshape(len(data), -1)
            start = self.require_model(task)
            model = self.labeller.fit(self.trainer, start, rows, data.labels[data.indices])
        else:
            model = self.training.train(task, data)
        self.trainer.load(model)
        return self.labeller.labels(self.trainer, self.setup.public[images], self.abstain)

    def train_ahead(self, asked: Sequence[tuple[Task, LocalData]]) -> None:
        """See ``Client``; not in closed form."""
        if not self.labeller.is_closed_form:
            self.training.train_ahead(asked)

    def privatize(
        self, update: NDArray[np.int64], task: Task, noise: NoiseGenerator
    ) -> NDArray[np.int64]:
        """The randomised labels, or the noised votes."""
        return self._answers(task).privatize(update, self._question(task)[0], noise)

    def canary(self, task: Task, name: int, count: int) -> Canary:
        """Labels (K,) at random, and the next class of each.

        The direction is in the cells (rows, C) of all answers: 1 for a label, −1 for the next.
        """
        place, _, images = self._question(task)
        classes = self.trainer.num_classes
        rng = experiment_rng(self.setup.seed, "canary", client=name)
        labels = rng.integers(classes, size=len(images))
        others = (labels + 1) % classes
        rows = place * len(images) + np.arange(len(images))
        cells = np.zeros((math.prod(self.codec(task).shape) // classes, classes), np.int8)
        cells[rows, labels] = 1
        cells[rows, others] = -1
        return Canary(labels, others, cells)

    def _answers(self, task: Task) -> AnswerKind:
        _, clients, images = self._question(task)
        classes = self.trainer.num_classes
        return self.kind(LabelQuery(self.setup.budget, len(images), classes, clients))

    def _question(self, task: Task) -> tuple[int, int, NDArray[np.int64]]:
        """The client's place among those who are asked apart, their number, and its images (K,)."""
        return 0, 1, self._images(task.arrays.get("indices"))

    def _images(self, indices: NDArray | None) -> NDArray[np.int64]:
        """``indices`` if they are distinct public images, 1 to K of them; TaskError otherwise."""
        images = self.public_images(indices)
        if not 1 <= len(images) <= self.most:
            raise TaskError(
                f"indices: {len(images)} images asked for; this client labels 1 to "
                f"{self.most} a round (strategy.K)"
            )
        return images


class PrivateKTClient(LabelClient):
    """Answers with a randomised label for each public image that it is asked about.

    Against whoever reads its message: each label costs ε/K. ValueError for settings out of range.

    Args:
        setup, K, local, labeller: as for ``LabelClient``.
        answers: "paper", where all clients have the same images, or "disjoint", where each has its
            own.
    """

    def __init__(
        self, setup: ClientSetup, *, answers: str, K: int, local: LocalSgd, labeller: Labeller
    ) -> None:
        super().__init__(setup, answer_kind(answers), K, local, labeller)

    def _question(self, task: Task) -> tuple[int, int, NDArray[np.int64]]:
        if self.kind is not DisjointLabels:
            return super()._question(task)
        indices = task.arrays.get("indices")
        clients = task.arrays.get("clients")
        if clients is None or clients.dtype != np.int64 or clients.ndim != 1:
            raise TaskError("clients: the task must name the cohort as int64[n]")
        found = np.flatnonzero(clients == task.client)
        if len(found) != 1:
            raise TaskError("clients: must name this client once")
        if indices is None or indices.ndim != 2 or len(indices) != len(clients):
            raise TaskError("indices: the task must have a row of int64 for each client")
        return int(found[0]), len(clients), self._images(indices[found[0]])
