"""NbAFL, the client: train near the global model, clip the whole model once, add noise, upload.

Wei, Li, Ding, Ma, Yang, Farokhi, Jin, Quek, Poor: "Federated learning with differential privacy:
algorithms and performance analysis", IEEE TIFS 15 (2020), arXiv 1911.00222, algorithm 1.

    w_i = argmin F_i(w) + (μ/2)‖w − w̃(t−1)‖²        by local SGD
    w_i ← w_i / max(1, ‖w_i‖/C)
    w̃_i = w_i + N(0, σ_U² I)

Symbols: C = ``clip``, μ = ``proximal_mu``, σ_U = ``NbaflNoise.upload_sigma``. The noise is discrete
Gaussian on a grid of at most σ_U/2¹⁶; every amount follows from the client's own settings, never
from the server. With ``privacy.sensitivity=dpsgd`` local training itself is private
(``murmur.algorithms.dpsgd``), the upload is what it leads to, and w̃_i = w_i.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from clients.base import Canary, Client, ClientSetup, LocalData, Task, TaskError, vector_canary
from clients.local_training import LocalSgd, LocalTraining
from murmur.algorithms.dpsgd import Lots, train_privately
from murmur.algorithms.nbafl.noise import BOUNDED_CHANGE, NbaflNoise, NbaflSettings
from murmur.learning.codec import GridCodec
from murmur.learning.training.dpsgd import SENSITIVITY, ClippingNorm, DpSgd
from murmur.learning.training.stack import ClientBatch
from murmur.learning.training.trial import require_separate_examples
from murmur.privacy.events import Event
from murmur.privacy.mechanisms.clipping import clip_l2
from murmur.privacy.mechanisms.grid import quantize_nearest
from murmur.privacy.mechanisms.sampled_gaussian import LotSchedule
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.record_choice import keyed_order
from murmur.settings import settings


@settings
class NbaflTraining(LocalSgd):
    """``LocalSgd``, and what DP-SGD needs beside it.

    Attributes:
        clipping_norm: clipping norm of one example's gradient, at least 1e-9; for
            ``sensitivity=dpsgd`` only, where ``batch_size`` is the mean size of a lot.
    """

    clipping_norm: ClippingNorm = 1.0


class NbAFLClient(Client):
    """Answers with its clipped and noised weights, weighted by its number of examples.

    The noise is this client's own, against whoever reads its message, and no smaller because others
    are in the sum. What a record's σ_U rests on is named in the event (``NbaflNoise.release``).
    ValueError for settings that do not fit together.

    Attributes:
        noise: σ_U, the grid and the clipping norm.
        schedule: lots of DP-SGD; None where the noise goes on the upload.
    """

    units = ("client", "record")

    def __init__(
        self, setup: ClientSetup, *, settings: NbaflSettings, local: NbaflTraining
    ) -> None:
        super().__init__(setup)
        size = self.trainer.num_parameters
        self.noise = NbaflNoise.of(setup.budget, setup.client_sizes, size, settings)
        self.training = LocalTraining(self, local, self.noise.proximal_mu)
        self.local = local
        self.schedule: LotSchedule | None = None
        if self.noise.is_private and self.noise.sensitivity == "dpsgd":
            if local.epochs is None:
                raise ValueError(
                    f"local.steps={local.steps}: sensitivity=dpsgd counts epochs; set those"
                )
            require_separate_examples(setup.trainer)
            lots = Lots(local.epochs, local.batch_size)
            self.schedule = lots.schedule(self.noise.participations)

    def codec(self, task: Task) -> GridCodec:
        """All parameters (d,) on the grid."""
        return GridCodec(self.trainer.num_parameters, self.noise.grid)

    def event(self, task: Task) -> Event:
        """One release of the whole model; with ``dpsgd`` the steps of one round.

        TaskError for a client that has published fewer examples than the noise is made for.
        """
        self.require_asked(task)
        self.require_model(task)
        size = self.size(task.client)
        if size < self.noise.smallest_dataset:
            raise TaskError(
                f"smallest_dataset={self.noise.smallest_dataset}: this client has published fewer "
                "examples, for which the noise would be too small"
            )
        if self.schedule is not None:
            return self.schedule.event(self.noise.epsilon, self.noise.delta, size)
        if self.in_keyed_order:
            self.record_key(task.client)
        return self.noise.release()

    def answer(self, task: Task, data: LocalData, noise: NoiseGenerator) -> NDArray[np.int64]:
        """The upload (d,) in grid steps; with ``dpsgd`` the noise goes into the training."""
        if self.schedule is None:
            return self.privatize(self.train(task, data), task, noise)
        return self.privatize(self._descend(task, data, self.schedule, noise), task, noise)

    @property
    def noise_in_training(self) -> bool:
        """True with ``dpsgd``; see ``Client``."""
        return self.schedule is not None

    def _descend(
        self, task: Task, data: LocalData, schedule: LotSchedule, noise: NoiseGenerator
    ) -> NDArray[np.float32]:
        """Parameters (d,) of norm C after DP-SGD with the proximal term."""
        anchor = self.require_model(task)
        self.trainer.load(anchor)
        size = self.size(task.client)
        # μ(w − anchor) in the steps of the gradients' sum, which needs no protection.
        rate = schedule.rate(size)
        pull = self.noise.proximal_mu * SENSITIVITY * rate * size / self.local.clipping_norm

        def drift() -> NDArray[np.int64]:
            away = np.subtract(self.trainer.parameters(), anchor, dtype=np.float64)
            return np.rint(pull * away).astype(np.int64)

        model = train_privately(
            self.trainer,
            DpSgd(self.local.batch_size, self.local.clipping_norm, self.local.learning_rate),
            schedule,
            self.noise.epsilon,
            self.noise.delta,
            size,
            data,
            noise,
            drift=drift,
        )
        return clip_l2(model if np.isfinite(model).all() else anchor, self.noise.clip)

    def train(self, task: Task, data: LocalData) -> NDArray[np.float32]:
        """Parameters (d,) after local training, clipped to norm C."""
        return clip_l2(self.training.train(task, data), self.noise.clip)

    def share(self, task: Task, data: LocalData) -> ClientBatch:
        """See ``Client``; in a keyed order where the noise rests on what one record changes.

        Batches are drawn by places. In an order by names or classes one record that is exchanged
        moves the places of many. In this one, whose key is secret, it is as likely as any other
        to come to the very place of the one that it replaces, where it changes nothing else.
        """
        if not self.in_keyed_order:
            return super().share(task, data)
        order = keyed_order(data.contents(), self.record_key(task.client))
        return super().share(task, replace(data, indices=data.indices[order]))

    @property
    def in_keyed_order(self) -> bool:
        """True if an upload's noise is for what one record changes, by an assumption."""
        return self.noise.is_noisy and BOUNDED_CHANGE in self.noise.assumptions

    def train_ahead(self, asked: Sequence[tuple[Task, LocalData]]) -> None:
        """See ``Client``; not where the noise goes into the training."""
        if self.schedule is None:
            self.training.train_ahead(asked)

    def privatize(
        self, update: NDArray[np.float32], task: Task, noise: NoiseGenerator
    ) -> NDArray[np.int64]:
        """The clipped weights in grid steps, plus the uplink noise.

        ``update``: (d,), of norm at most C. Rounding to the nearest step is part of the sensitivity
        that the noise is made for. Nothing is added where DP-SGD has noised it, or nothing is
        private.
        """
        steps = quantize_nearest(update, self.noise.grid)
        if not self.noise.is_noisy:
            return steps
        return self.noise.mechanism.privatize_integers(steps, noise)

    def most_canaries(self) -> int:  # noqa: D102
        return self.trainer.num_parameters

    def canary(self, task: Task, name: int, count: int) -> Canary:
        """Models of norm C."""
        size = self.trainer.num_parameters
        return vector_canary(size, self.noise.clip, self.setup.seed, name, count)

    def weight(self, client: int) -> int:
        """|D_i|, public in this algorithm."""
        return self.size(client)
