"""KD-DPFL, the client: a large one labels the public set once, a general one trains privately.

Tan, Xu, Wang, Luo: "Differential privacy federated learning method based on knowledge
distillation", Computer Science 51(6A), 2024.

* purpose ``label`` (large clients): train a teacher on the own data, label the public images that
  the server names (``murmur.papers.kd_dpfl.teachers``). The labels cost ε_label, however many
  there are.
* purpose ``train`` (general clients; large ones if they join): ``clients.dpsgd_fedavg`` with the
  client's own ε_g,i; or NbAFL's noise on the clipped model.

Symbols: ε_label, ε_g = ``scheme.plan.label``, ``scheme.plan.general``. Each follows from the
client's own settings, never from the server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.base import ClientSetup, LocalData, Task, TaskError
from clients.dpsgd_fedavg import DpSgdClient
from murmur.learning.codec import Codec
from murmur.learning.training.dpsgd import SENSITIVITY
from murmur.papers.kd_dpfl.scheme import Scheme
from murmur.papers.kd_dpfl.teachers import Teacher
from murmur.privacy.events import Event, NonPrivateEvent
from murmur.privacy.mechanisms.sampled_gaussian import LotSchedule
from murmur.privacy.noise import NoiseGenerator


class KdDpflClient(DpSgdClient):
    """The client half; see ``conf/strategy/kd_dpfl.yaml`` for every knob."""

    purposes = ("train", "label")

    def __init__(
        self,
        setup: ClientSetup,
        *,
        sizes: Sequence[int] | None,
        grouping: Mapping[str, Any],
        spending: Mapping[str, Any],
        labelling: Mapping[str, Any],
        teacher: Mapping[str, Any],
        local: Mapping[str, Any],
        uploads: Mapping[str, Any],
        special: Mapping[str, Any],
    ) -> None:
        super().__init__(setup, **local)
        known = setup.client_sizes if sizes is None else tuple(sizes)
        if known is None:
            raise ValueError(
                "sizes=null: the grouping needs every client's size; publish them in strategy.sizes"
            )
        self.scheme = Scheme.of(
            setup.budget,
            known,
            classes=self.trainer.num_classes,
            pool=len(setup.public),
            sensitivity=SENSITIVITY,
            grouping=grouping,
            spending=spending,
            labelling=labelling,
            local=local,
            uploads=uploads,
            special=special,
        )
        self.teacher = Teacher(self.trainer, self.scheme.labelling, **teacher)

    def size(self, client: int) -> int:
        """As the grouping has it."""
        return self.scheme.sizes[client]

    def epsilon(self, client: int) -> float:
        """ε_g,i; TaskError for a client that takes no part in the federated stage."""
        try:
            return self.scheme.plan.general[client]
        except KeyError:
            raise TaskError("this client takes no part in the federated stage") from None

    def codec(self, task: Task) -> Codec:
        """All parameters, or labels for the images that the server names."""
        return self.teacher.codec() if self._labels(task) else super().codec(task)

    def event(self, task: Task) -> Event:
        """All labels at once, or the steps of one round."""
        self.require_model(task)
        if not self._labels(task):
            epsilon = self.epsilon(task.client)
            if math.isinf(epsilon):
                return NonPrivateEvent()
            size = self.size(task.client)
            return self.scheme.uploads.event(epsilon, self.setup.budget.delta, size)
        self._indices(task)
        return self.scheme.labelling.event(
            self._label_epsilon(task), self.setup.budget.delta, self.size(task.client)
        )

    def answer(self, task: Task, data: LocalData, noise: NoiseGenerator) -> NDArray:
        """The teacher's labels, or the privately trained model."""
        if not self._labels(task):
            return self._upload(task, data, noise)
        self.trainer.load(self.require_model(task))
        epsilon, images = self._label_epsilon(task), self.setup.public[self._indices(task)]
        if math.isinf(epsilon):
            return self.teacher.labels(data, images, self.rng(task, "teacher"))
        return self.teacher.private_labels(
            data, images, self.rng(task, "teacher"), epsilon, self.setup.budget.delta, noise
        )

    def _upload(self, task: Task, data: LocalData, noise: NoiseGenerator) -> NDArray:
        uploads, epsilon = self.scheme.uploads, self.epsilon(task.client)
        if isinstance(uploads, LotSchedule) or math.isinf(epsilon):
            return super().answer(task, data, noise)
        model = self.train(task, data)
        return uploads.privatize(model, epsilon, self.setup.budget.delta, noise)

    def _labels(self, task: Task) -> bool:
        return task.purpose == "label"

    def _label_epsilon(self, task: Task) -> float:
        try:
            return self.scheme.plan.label[task.client]
        except KeyError:
            raise TaskError("this client is not large, so it does not label") from None

    def _indices(self, task: Task) -> NDArray[np.int64]:
        indices, pool = task.arrays.get("indices"), len(self.setup.public)
        wanted = self.scheme.labelling.queries
        if indices is None or indices.dtype != np.int64 or indices.shape != (wanted,):
            raise TaskError(f"indices: the task must name {wanted} public images as int64")
        if indices.min() < 0 or indices.max() >= pool or len(np.unique(indices)) != len(indices):
            raise TaskError(f"indices: must be distinct and lie in 0..{pool - 1}")
        return indices
