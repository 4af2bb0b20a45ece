"""SCAFFOLD, the client: local steps corrected by c − c_i, and a control variate of its own.

Karimireddy et al., ICML 2020, algorithm 1 with option II:

    y_i ← y_i − η (g_i(y_i) − c_i + c),   c_i⁺ = c_i − c + (x − y_i)/(Kη)

Symbols: K = local steps, η = learning rate. c_i stays on the client's own disk; what leaves beside
the update is (c_i⁺ − c_i) times ``control_scale``, which brings both to about one size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.base import ClientSetup, LocalData, Task, TaskError
from clients.fedavg import FedAvgClient
from murmur.learning.codec import Parts
from murmur.learning.training.batches import count_steps
from murmur.privacy.events import Event


class ScaffoldClient(FedAvgClient):
    """Answers with its update and the change of its control variate."""

    def __init__(self, setup: ClientSetup, *, control_scale: float, **averaging: Any) -> None:
        super().__init__(setup, **averaging)
        size = self.trainer.num_parameters
        self.parts, self.control_scale = Parts(update=size, control=size), control_scale

    def event(self, task: Task) -> Event:
        """What the protection leaves of both."""
        control = task.arrays.get("control")
        if control is None or control.dtype != np.float32 or control.shape != task.model.shape:
            raise TaskError(f"control: must be float32[{self.trainer.num_parameters}]")
        if not np.isfinite(control).all():
            raise TaskError("control: holds NaN or infinite values")
        return super().event(task)

    def correction(self, task: Task) -> NDArray[np.float32]:
        """C − c_i, (d,)."""
        own, control = self.setup.memory.load(task.client, task.round - 1), task.arrays["control"]
        return control if own is None else control - own["control"]

    def train(self, task: Task, data: LocalData) -> NDArray[np.float64]:
        """Both arrays side by side; c_i⁺ is kept."""
        update = super().train(task, data)
        epochs, steps = self.sgd["epochs"], self.sgd["steps"]
        count = count_steps(epochs, steps, len(data), self.sgd["batch_size"])
        drift = update / (count * self.sgd["lr"])  # (y_i − x)/(Kη)
        own = (-self.correction(task) - drift).astype(np.float32)
        self.setup.memory.save(task.client, task.round, {"control": own})
        change = -drift - task.arrays["control"]
        return self.parts.join(update=update, control=change * self.control_scale)

    def weight(self, client: int) -> int:
        """Every client counts alike."""
        return 1
