"""DP-FedAvg, the client: train, clip the update, send it on a grid; the server adds the noise.

McMahan, Ramage, Talwar, Zhang, "Learning differentially private recurrent language models", ICLR
2018. Andrew, Thakkar, McMahan, Ramaswamy, "Differentially private learning with adaptive
clipping", NeurIPS 2021.

    Δ_i = w_i − w,  Δ_i ← Δ_i · min(1, C/‖Δ_i‖),  b_i = 1 if ‖Δ_i‖ ≤ C else 0

Symbols: C = the task's ``clip``, b_i = the last entry of the release, where clipping adapts. What
leaves carries no noise: the device's ledger counts it as unprotected, and the protection is the
server's promise.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from clients.base import ClientSetup, Task, TaskError
from clients.local_sgd import LocalSgdClient
from learning.grid_codec import GridCodec
from privacy.events import Event, NonPrivateEvent
from privacy.mechanisms import clip_l2
from privacy.mechanisms.clipped_grid import CLIP_STEPS, truncate
from privacy.noise import NoiseGenerator


class DPFedAvgClient(LocalSgdClient):
    """Answers with its clipped update; ``adaptive``: and with whether it was short enough."""

    def __init__(
        self,
        setup: ClientSetup,
        *,
        epochs: int | None,
        steps: int | None,
        batch_size: int,
        learning_rate: float,
        adaptive: bool,
    ) -> None:
        super().__init__(
            setup, epochs=epochs, steps=steps, batch_size=batch_size, learning_rate=learning_rate
        )
        self.adaptive = adaptive

    def codec(self, task: Task) -> GridCodec:
        """The update (d,), then the bit where clipping adapts."""
        return GridCodec(self.trainer.num_parameters + self.adaptive, bound=CLIP_STEPS)

    def event(self, task: Task) -> Event:
        """The update leaves without noise."""
        self.require_model(task)
        self._clip(task)
        return NonPrivateEvent()

    def result(self, model: NDArray[np.float32], task: Task) -> NDArray[np.float64]:
        """The update (d,) of local training."""
        return model.astype(np.float64) - task.model

    def privatize(
        self, update: NDArray[np.float64], task: Task, noise: NoiseGenerator
    ) -> NDArray[np.int64]:
        """The clipped update in grid steps, and ±1 norm for the bit; ValueError if not finite."""
        clip = self._clip(task)
        clipped = clip_l2(update, clip)
        steps = truncate(clipped, clip)
        if not self.adaptive:
            return steps
        short = np.array_equal(clipped, update)
        return np.append(steps, CLIP_STEPS if short else -CLIP_STEPS)

    def _clip(self, task: Task) -> float:
        clip = task.arrays.get("clip")
        if clip is None or clip.dtype != np.float64 or clip.shape != (1,):
            raise TaskError("clip: the task must state the clipping norm as float64[1]")
        if not (clip[0] > 0 and math.isfinite(clip[0])):
            raise TaskError(f"clip={clip[0]}: must be finite and above 0")
        return float(clip[0])
