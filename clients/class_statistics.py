"""Class statistics, the client: one matrix that says what its classes look like.

A_i = Σ_c n_c^(−1/2) Σ_{x∈c} φ(x)(e_c − 1/C)ᵀ, scaled to norm 1 (``schemes.class_statistics``). φ
are the run's features; nothing is trained, and the model that the server sends is not used.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clients.base import Client, ClientSetup, LocalData, Task
from learning.contribution import Codec
from learning.linear_model import require_linear
from privacy.events import Event
from privacy.noise import NoiseGenerator
from schemes.class_statistics.moments import moments
from schemes.class_statistics.release import StatisticsRelease


class ClassStatisticsClient(Client):
    """Releases its matrix once, with its share of the noise.

    ``components``: of the features, how many it tells of, the first ones; None: all.
    """

    def __init__(self, setup: ClientSetup, *, components: int | None) -> None:
        super().__init__(setup)
        require_linear(self.trainer, "class statistics")
        features = int(np.prod(self.trainer.input_shape))
        classes = self.trainer.num_classes
        self.release = StatisticsRelease(setup.budget, features, classes, components)

    def codec(self, task: Task) -> Codec:
        """Integers on the grid of the clipping norm."""
        return self.release.codec

    def event(self, task: Task) -> Event:
        """One noised vector of norm 1."""
        return self.release.event()

    def train(self, task: Task, data: LocalData) -> NDArray[np.float64]:
        """The matrix (k, C) of the first k features."""
        rows = data.images[data.indices].reshape(len(data), -1)[:, : self.release.shape[0]]
        return moments(rows, data.labels[data.indices], self.trainer.num_classes)

    def privatize(self, update: NDArray, task: Task, noise: NoiseGenerator) -> NDArray[np.int64]:
        """The matrix as integers, noised."""
        return self.release.privatize(update, noise)
