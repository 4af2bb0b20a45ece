"""PrivateKT's two trainings on the server as settings: fine-tuning and self-training (eq. 5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax


@dataclass(frozen=True)
class Distillation:
    """SGD on the server: ``passes`` over the data in batches of ``batch_size`` (None: all)."""

    passes: int
    learning_rate: float
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.passes < 0:
            raise ValueError(f"passes={self.passes}: must be at least 0")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate={self.learning_rate}: must be above 0")


@dataclass(frozen=True)
class SelfTraining(Distillation):
    """``samples`` M; ``targets``: soft, hard, or sharpened (at ``temperature`` below 1)."""

    samples: int = 0
    targets: str = "soft"
    temperature: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.targets not in ("soft", "hard", "sharpened"):
            raise ValueError(f"targets={self.targets!r}: must be soft, hard or sharpened")
        if not 0 < self.temperature < 1:
            raise ValueError(f"temperature={self.temperature}: must lie in (0, 1)")

    def teach(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the model's own outputs (M, C) become as targets."""
        if self.targets == "hard":
            return np.eye(logits.shape[1], dtype=np.float32)[logits.argmax(axis=1)]
        scale = self.temperature if self.targets == "sharpened" else 1.0
        return np.exp(log_softmax(logits / scale, axis=1)).astype(np.float32)
