"""NbAFL, the client: train near the global model, clip the whole model once, add noise, upload.

Wei, Li, Ding, Ma, Yang, Farokhi, Jin, Quek, Poor: "Federated learning with differential privacy:
algorithms and performance analysis", IEEE TIFS 15 (2020), arXiv 1911.00222, algorithm 1.

    w_i = argmin F_i(w) + (μ/2)‖w − w̃(t−1)‖²        by local SGD
    w_i ← w_i / max(1, ‖w_i‖/C)
    w̃_i = w_i + N(0, σ_U² I)

Symbols: C = ``clip``, μ = ``proximal_mu``, σ_U = ``NbaflNoise.upload_sigma``. The noise is discrete
Gaussian on a grid of at most σ_U/2¹⁶; every amount follows from the client's own settings, never
from the server. With ``privacy.sensitivity=dpsgd`` local training itself is private
(``murmur.learning.training.dpsgd``), the upload is what it leads to, and w̃_i = w_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.base import Canary, ClientSetup, LocalData, Task, TaskError, vector_canary
from clients.local_sgd import LocalSgdClient
from murmur.learning.codec import GridCodec
from murmur.learning.training.dpsgd import SENSITIVITY, DpSgd
from murmur.learning.training.trial import require_separate_examples
from murmur.papers.nbafl.noise import NbaflNoise
from murmur.privacy.events import Event
from murmur.privacy.mechanisms import clip_l2, quantize_nearest
from murmur.privacy.mechanisms.sampled_gaussian import LotSchedule
from murmur.privacy.noise import NoiseGenerator


class NbAFLClient(LocalSgdClient):
    """Answers with its clipped and noised weights, weighted by its number of examples.

    ``noise``: the settings of ``NbaflNoise`` that both halves share. ``epochs`` or ``steps``,
    ``batch_size``, ``learning_rate``: local SGD. ``clipping_norm``: of one example's gradient, for
    ``dpsgd``, whose lots have ``batch_size`` examples on average.
    """

    def __init__(
        self,
        setup: ClientSetup,
        *,
        noise: dict[str, Any],
        epochs: int | None,
        steps: int | None,
        batch_size: int,
        learning_rate: float,
        clipping_norm: float,
    ) -> None:
        size = setup.trainer.num_parameters
        self.noise = NbaflNoise.of(setup.budget, setup.client_sizes, size, **noise)
        super().__init__(
            setup,
            epochs=epochs,
            steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            proximal_mu=self.noise.proximal_mu,
        )
        self.descent = DpSgd(batch_size, clipping_norm, learning_rate)
        self.schedule: LotSchedule | None = None
        if self.noise.is_private and self.noise.sensitivity == "dpsgd":
            if epochs is None:
                raise ValueError(f"local.steps={steps}: sensitivity=dpsgd counts epochs; set those")
            require_separate_examples(setup.trainer)
            self.schedule = LotSchedule(batch_size, epochs, SENSITIVITY, self.noise.participations)

    def codec(self, task: Task) -> GridCodec:
        """All parameters (d,) on the grid."""
        return GridCodec(self.trainer.num_parameters, self.noise.grid)

    def event(self, task: Task) -> Event:
        """One release of the whole model."""
        self.require_asked(task)
        self.require_model(task)
        if self.size(task.client) < self.noise.smallest_dataset:
            raise TaskError(
                f"smallest_dataset={self.noise.smallest_dataset}: this client has published fewer "
                "examples, for which the noise would be too small"
            )
        if self.schedule is not None:
            size = self.size(task.client)
            return self.schedule.event(self.noise.epsilon, self.noise.delta, size)
        return self.noise.release()

    def answer(self, task: Task, data: LocalData, noise: NoiseGenerator) -> NDArray[np.int64]:
        """The upload; with ``dpsgd`` the noise goes into the training."""
        if self.schedule is None:
            return self.privatize(self.train(task, data), task, noise)
        anchor = self.require_model(task)
        self.trainer.load(anchor)
        size = self.size(task.client)
        mechanism = self.schedule.mechanism(self.noise.epsilon, self.noise.delta, size)
        # μ(w − anchor) in the steps of the gradients' sum, which needs no protection.
        pull = self.noise.proximal_mu * SENSITIVITY * mechanism.rate * size
        pull /= self.descent.clipping_norm

        def perturb(total: NDArray[np.int64]) -> NDArray[np.int64]:
            away = self.trainer.parameters().astype(np.float64) - anchor
            return mechanism.perturb(total, noise) + np.rint(pull * away).astype(np.int64)

        self.descent.train(
            self.trainer,
            data.images,
            data.labels,
            indices=data.indices,
            steps=self.schedule.steps(size),
            sample=lambda count: mechanism.sample(count, noise),
            perturb=perturb,
        )
        model = self.trainer.parameters()
        model = model if np.isfinite(model).all() else anchor
        return self.privatize(clip_l2(model, self.noise.clip), task, noise)

    @property
    def noise_in_training(self) -> bool:
        """See ``Client``."""
        return self.schedule is not None

    def train_ahead(self, asked: Sequence[tuple[Task, LocalData]]) -> None:
        """See ``Client``; not where the noise goes into the training."""
        if self.schedule is None:
            super().train_ahead(asked)

    def result(self, model: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
        """Parameters (d,) after local training, clipped to norm C."""
        return clip_l2(model, self.noise.clip)

    def privatize(
        self, update: NDArray[np.float32], task: Task, noise: NoiseGenerator
    ) -> NDArray[np.int64]:
        """The clipped weights in grid steps, plus the uplink noise."""
        steps = quantize_nearest(update, self.noise.grid)
        if not self.noise.is_noisy:
            return steps
        return self.noise.mechanism.privatize_integers(steps, noise)

    def canary(self, task: Task, name: int, count: int) -> Canary:
        """Models of norm C."""
        return vector_canary(
            self.trainer.num_parameters, self.noise.clip, self.setup.seed, name, count
        )

    def weight(self, client: int) -> int:
        """|D_i|, public in this algorithm."""
        return self.size(client)
