"""PrivateKT, the client: train locally, label a few public images, protect the labels.

Qi, Wu, Wu, He, Huang, Xie: "Differentially private knowledge transfer for federated learning",
Nature Communications 14 (2023), s41467-023-38794-x.

    ŷ = argmax f(x; Θ_local)              for the K public images that the server picked
    y* = ŷ with probability β, else uniform over all C classes                      (eq. 2)
    β = expm1(ε/K) / (expm1(ε/K) + C)                                               (eq. 6)

and two other ways to answer (``murmur.papers.privatekt.answers``). Symbols: K = images asked
about, C = ``num_classes``, ε = the budget of one round. Noise follows from the number of images
that really arrived and from the client's own budget, never from the server.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from clients.base import Canary, ClientSetup, LocalData, Task, TaskError
from clients.local_sgd import LocalSgdClient
from murmur.common import experiment_rng
from murmur.learning.codec import Codec
from murmur.learning.linear_model import centred, require_linear, ridge, to_parameters, weights_of
from murmur.papers.privatekt.answers import ABSTAINED, Answers, LabelQuery, way_of
from murmur.privacy.events import Event
from murmur.privacy.noise import NoiseGenerator


class PrivateKTClient(LocalSgdClient):
    """Answers with a protected label for each public image that it is asked about.

    ``answers``: the way (``murmur.papers.privatekt.answers.WAYS``). ``learner``: sgd (``epochs``,
    ``batch_size``, ``learning_rate``), or ridge, for linear models: in closed form with ``penalty``
    on the first ``components`` of the features (None: all). ``abstain``: of votes, the share of
    images of which it is least sure and for which it casts none. ``max_labels``: the most images
    it labels in one round, however many the server sends.
    """

    def __init__(
        self,
        setup: ClientSetup,
        *,
        answers: str,
        learner: str,
        penalty: float,
        components: int | None,
        abstain: float,
        epochs: int,
        batch_size: int,
        learning_rate: float,
        max_labels: int,
    ) -> None:
        self.threats = way_of(answers).threats
        super().__init__(setup, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
        if learner not in ("sgd", "ridge"):
            raise ValueError(f"learner={learner!r}: must be 'sgd' or 'ridge'")
        if learner == "ridge":
            require_linear(self.trainer, "learner=ridge")
        if not 0 <= abstain < 1:
            raise ValueError(f"abstain={abstain}: must lie in [0, 1)")
        if abstain and answers != "votes":
            raise ValueError(f"abstain={abstain}: only answers=votes can be withheld")
        self.way, self.learner = answers, learner
        self.ridge = partial(ridge, penalty=penalty, components=components)
        self.abstain, self.max_labels = abstain, max_labels

    def codec(self, task: Task) -> Codec:
        """That of the way to answer."""
        return self._answers(task).codec

    def event(self, task: Task) -> Event:
        """K protected labels."""
        self.require_asked(task)
        self.require_model(task)
        return self._answers(task).event()

    def train(self, task: Task, data: LocalData) -> NDArray:
        """Labels (K,) of the public images under the locally trained model."""
        if self.learner == "sgd":
            return super().train(task, data)
        start = weights_of(self.trainer, self.start(task))
        rows = data.images[data.indices].reshape(len(data), -1)
        wanted = centred(data.labels[data.indices], self.trainer.num_classes) - rows @ start
        model = to_parameters(self.trainer, start + self.ridge(rows, wanted))
        self.trainer.load(model)
        return self.result(model, task)

    def result(self, model: NDArray[np.float32], task: Task) -> NDArray[np.int64]:
        """Labels (K,), with ``ABSTAINED`` where no vote is cast."""
        logits = self.trainer.logits(self.setup.public[self._images(task)])
        labels = logits.argmax(axis=1).astype(np.int64)
        withheld = int(self.abstain * len(labels))
        if withheld:
            ordered = np.sort(logits, axis=1)
            lead = ordered[:, -1] - ordered[:, -2]
            labels[np.argsort(lead, kind="stable")[:withheld]] = ABSTAINED
        return labels

    def privatize(
        self, update: NDArray[np.int64], task: Task, noise: NoiseGenerator
    ) -> NDArray[np.int64]:
        """The protected labels."""
        return self._answers(task).privatize(update, self._place(task), noise)

    def canary(self, task: Task, name: int, count: int) -> Canary:
        """Labels (K,) at random, and the next class of each."""
        classes, asked = self.trainer.num_classes, len(self._images(task))
        rng = experiment_rng(self.setup.seed, "canary", client=name)
        labels = rng.integers(classes, size=asked)
        others = (labels + 1) % classes
        cells = np.zeros((math.prod(self._answers(task).codec.shape) // classes, classes), np.int8)
        rows = self._place(task) * asked + np.arange(asked)
        cells[rows, labels], cells[rows, others] = 1, -1
        return Canary(labels, others, cells)

    def _answers(self, task: Task) -> Answers:
        images = self._images(task)
        clients = len(task.arrays["clients"]) if self.way == "disjoint" else 1
        classes = self.trainer.num_classes
        return way_of(self.way)(LabelQuery(self.setup.budget, len(images), classes, clients))

    def _place(self, task: Task) -> int:
        """Which row of the cohort's queries is this client's own."""
        if self.way != "disjoint":
            return 0
        clients = task.arrays.get("clients")
        if clients is None or clients.dtype != np.int64 or clients.ndim != 1:
            raise TaskError("clients: the task must name the cohort as int64[n]")
        found = np.flatnonzero(clients == task.client)
        if len(found) != 1:
            raise TaskError("clients: must name this client once")
        return int(found[0])

    def _images(self, task: Task) -> NDArray[np.int64]:
        """The public images (K,) that this client is asked about."""
        indices = task.arrays.get("indices")
        pool, axes = len(self.setup.public), 2 if self.way == "disjoint" else 1
        if indices is None or indices.dtype != np.int64 or indices.ndim != axes:
            raise TaskError(f"indices: the task must name public images as int64, {axes} axes")
        if self.way == "disjoint":
            place = self._place(task)
            if len(indices) != len(task.arrays["clients"]):
                raise TaskError("indices: must have a row for each client")
            indices = indices[place]
        if not 1 <= len(indices) <= self.max_labels:
            raise TaskError(
                f"indices: {len(indices)} images asked for; this client labels 1 to "
                f"{self.max_labels} a round (strategy.K)"
            )
        if indices.min() < 0 or indices.max() >= pool or len(np.unique(indices)) != len(indices):
            raise TaskError(f"indices: must be distinct and lie in 0..{pool - 1}")
        return indices
