"""Federated averaging over clients that train by DP-SGD: every example is protected at its client.

Abadi et al., "Deep learning with differential privacy", CCS 2016, inside McMahan et al., AISTATS
2017. In one round a client takes ⌈E·n/L⌉ steps of ``training.dpsgd`` from the global model:

    w ← w − η · (Σ_{i in lot} clip(g_i, C) + N_Z(0, (mC)²)) / L,    each i in the lot w.p. L/n

Symbols: E = ``epochs``, L = ``lot_size``, C = ``clipping_norm``, η = ``learning_rate``, n = the
client's size, m the least noise multiplier that all rounds' steps need for the client's ε. What
leaves is the model, post-processing of the noisy sums.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from clients.base import Client, ClientSetup, LocalData, Task
from murmur.learning.codec import Codec, WeightCodec
from murmur.learning.training.dpsgd import SENSITIVITY, DpSgd
from murmur.learning.training.trial import require_separate_examples
from murmur.privacy.events import Event, NonPrivateEvent
from murmur.privacy.mechanisms.sampled_gaussian import LotSchedule, SampledGaussian
from murmur.privacy.noise import NoiseGenerator


class DpSgdClient(Client):
    """Answers with its privately trained weights, weighted by its number of examples."""

    def __init__(
        self,
        setup: ClientSetup,
        *,
        epochs: int,
        lot_size: int,
        clipping_norm: float,
        learning_rate: float,
        views: int = 1,
        average: float = 0.0,
    ) -> None:
        super().__init__(setup)
        require_separate_examples(setup.trainer)
        if views > 1 and tuple(setup.trainer.input_shape[1:]) == (1, 1):
            raise ValueError(
                f"views={views}: are shifts of an image by pixels, which features have not; set "
                "strategy.local.views=1 or features=none"
            )
        releases = setup.budget.releases
        self.settings = DpSgd(lot_size, clipping_norm, learning_rate, views, average)
        self.schedule = LotSchedule(lot_size, epochs, SENSITIVITY, releases)

    def epsilon(self, client: int) -> float:
        """The ε that a client may spend on its uploads."""
        return self.setup.budget.epsilon

    def codec(self, task: Task) -> Codec:
        """All parameters (d,)."""
        return WeightCodec(self.trainer.num_parameters)

    def event(self, task: Task) -> Event:
        """The steps of one round."""
        self.require_asked(task)
        self.require_model(task)
        epsilon, size = self.epsilon(task.client), self.size(task.client)
        if math.isinf(epsilon):
            return NonPrivateEvent()
        return self.schedule.event(epsilon, self.setup.budget.delta, size)

    def answer(self, task: Task, data: LocalData, noise: NoiseGenerator) -> NDArray:
        """Parameters (d,) after DP-SGD; after plain SGD where ε is infinite."""
        epsilon = self.epsilon(task.client)
        if math.isinf(epsilon):
            return self.train(task, data)
        size = self.size(task.client)
        mechanism = self.schedule.mechanism(epsilon, self.setup.budget.delta, size)
        self.trainer.load(self.require_model(task))
        self.descend(data, self.settings, mechanism, self.schedule.steps(size), noise)
        return self._within_bounds(self.trainer.parameters())

    def descend(
        self,
        data: LocalData,
        settings: DpSgd,
        mechanism: SampledGaussian,
        steps: int,
        noise: NoiseGenerator,
    ) -> None:
        """DP-SGD from the trainer's present parameters, lots and noise from ``noise``."""
        settings.train(
            self.trainer,
            data.images,
            data.labels,
            indices=data.indices,
            steps=steps,
            sample=lambda count: mechanism.sample(count, noise),
            perturb=lambda total: mechanism.perturb(total, noise),
        )

    def train(self, task: Task, data: LocalData) -> NDArray[np.float32]:
        """Parameters (d,) after the same number of epochs without protection."""
        self.trainer.load(self.require_model(task))
        self.trainer.train(
            data.images,
            data.labels,
            indices=data.indices,
            rng=self.rng(task, "local training"),
            epochs=self.schedule.epochs,
            batch_size=self.settings.lot_size,
            lr=self.settings.learning_rate,
        )
        model = self.trainer.parameters()
        return self._within_bounds(model if np.isfinite(model).all() else task.model)

    def _within_bounds(self, model: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the codec can carry, so that a model that diverged is answered with, too."""
        return WeightCodec(len(model)).bounded(model)

    def privatize(self, update: NDArray, task: Task, noise: NoiseGenerator) -> NDArray:
        """The weights themselves, which ``answer`` has protected while it trained."""
        return update

    def weight(self, client: int) -> int:
        """n_i, public in this algorithm."""
        return self.size(client)
