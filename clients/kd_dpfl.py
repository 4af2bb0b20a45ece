"""KD-DPFL, the client: a large one labels the public set once, a general one trains privately.

Tan, Xu, Wang, Luo: "Differential privacy federated learning method based on knowledge
distillation", Computer Science 51(6A), 2024.

* purpose ``label`` (large clients): train a teacher on the own data, label the public images that
  the server names (``murmur.algorithms.kd_dpfl.labels``). The labels cost ε_label, however many
  there are.
* purpose ``train`` (general clients; large ones if they join): DP-SGD with the client's own ε_g,i;
  or NbAFL's noise on the clipped model.

Symbols: ε_label, ε_g = ``scheme.plan.label``, ``scheme.plan.general``. Each follows from the
client's own settings, never from the server.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from clients.base import Client, ClientSetup, Event, LocalData, NoiseGenerator, Task, TaskError
from clients.local_training import PrivateTraining
from murmur.algorithms.dpsgd import Lots
from murmur.algorithms.kd_dpfl.budget import Scheme, Sections
from murmur.algorithms.kd_dpfl.labels import NoisyModel, Teacher, TeacherTraining
from murmur.learning.codec import Codec, WeightCodec


class KdDpflClient(Client):
    """Client half of KD-DPFL; see ``conf/strategy/kd_dpfl.yaml`` for every knob.

    The protected unit is a record, nulled or not, against whoever reads this client's messages. The
    settings are those of the server half, of which it computes the same plan; ``teacher`` is
    read here only. ValueError where the plan cannot be met, or sizes are not public.

    Attributes:
        scheme: large clients, budgets of all clients and their mechanisms.
        training: DP-SGD of uploads; without noise where ``uploads.noise=nbafl``.
        teacher: labeller of the public set.
    """

    units = ("client", "record")
    purposes = ("train", "label")

    def __init__(
        self,
        setup: ClientSetup,
        *,
        sizes: Sequence[int] | None,
        sections: Sections,
        teacher: TeacherTraining,
        soft: bool,
        special: Lots,
    ) -> None:
        super().__init__(setup)
        known = setup.client_sizes if sizes is None else tuple(sizes)
        self.scheme = Scheme.of(
            setup.budget,
            known,
            sections,
            special,
            classes=self.trainer.num_classes,
            pool=len(setup.public),
        )
        # Its cohorts are drawn from some of the clients only, so one may be asked in every round:
        # the scheme's events count on noise for all of them.
        self.training = PrivateTraining(
            self, sections.local, replace(setup.budget, participations=None)
        )
        self.teacher = Teacher(self.trainer, self.scheme.labelling, teacher, soft)

    def size(self, client: int) -> int:
        """As the grouping has it; IndexError for a client that it does not know."""
        return self.scheme.sizes[client]

    def weight(self, client: int) -> int:
        """n_i, public in this algorithm."""
        return self.size(client)

    def codec(self, task: Task) -> Codec:
        """All parameters, or labels for the images that the server names."""
        if task.purpose == "label":
            return self.scheme.labelling.codec(self.teacher.soft)
        return WeightCodec(self.trainer.num_parameters)

    def event(self, task: Task) -> Event:
        """All labels at once, or the upload of one round.

        By the public size. TaskError for a client that takes no part in this stage.
        """
        self.require_model(task)
        self._epsilon(task)
        if task.purpose == "label":
            self._indices(task)
            self._key(task)
            return self.scheme.label_event(task.client)
        return self.scheme.upload_event(task.client)

    def answer(self, task: Task, data: LocalData, noise: NoiseGenerator) -> NDArray:
        """The teacher's labels, or the privately trained model.

        With ``uploads.noise=nbafl`` training is open and the whole model is clipped and noised.
        """
        epsilon = self._epsilon(task)
        if task.purpose == "label":
            return self._labels(task, data, epsilon, noise)
        if math.isinf(epsilon):
            return self.train(task, data)
        if isinstance(self.scheme.uploads, NoisyModel):
            trained = self.train(task, data)
            return self.scheme.uploads.privatize(trained, epsilon, self.setup.budget.delta, noise)
        return self.training.train(task, data, epsilon, noise)

    def train(self, task: Task, data: LocalData) -> NDArray[np.float32]:
        """Parameters (d,) after local training without protection."""
        return self.training.open.train(task, data)

    def privatize(self, update: NDArray, task: Task, noise: NoiseGenerator) -> NDArray:
        """Returns ``update`` as it is: ``answer`` has protected it while it trained."""
        return update

    def _labels(
        self, task: Task, data: LocalData, epsilon: float, noise: NoiseGenerator
    ) -> NDArray:
        self.trainer.load(self.require_model(task))
        return self.teacher.labels(
            data,
            self.setup.public[self._indices(task)],
            partial(self.rng, task),
            epsilon,
            self.setup.budget.delta,
            self.size(task.client),
            noise,
            self._key(task),
        )

    def _key(self, task: Task) -> bytes:
        """Key of the client's records, from which shards follow; empty where there are none."""
        if self.scheme.labelling.mechanism != "pate":
            return b""
        return self.record_key(task.client)

    def _epsilon(self, task: Task) -> float:
        """ε_label or ε_g,i; TaskError for a client that takes no part in this stage."""
        plan = self.scheme.plan
        if task.purpose == "label":
            if task.client not in plan.label:
                raise TaskError("this client is not large, so it does not label")
            return plan.label[task.client]
        if task.client not in plan.general:
            raise TaskError("this client takes no part in the federated stage")
        return plan.general[task.client]

    def _indices(self, task: Task) -> NDArray[np.int64]:
        indices = self.public_images(task.arrays.get("indices"))
        wanted = self.scheme.labelling.count
        if len(indices) != wanted:
            raise TaskError(f"indices: the task must name {wanted} public images")
        return indices
