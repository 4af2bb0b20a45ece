"""Class statistics, the client: one matrix that says what its classes look like.

A_i = Σ_c n_c^(−b) Σ_{x∈c} φ(x)(e_c − 1/C)ᵀ, scaled to norm 1
(``murmur.algorithms.class_statistics``). φ are the run's features, or the images' coordinates in
the pool; nothing is trained, and the model that the server sends is not used. Whatever the server
says of coordinates, the norm stays 1.
"""

import math
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from clients.base import Canary, Client, ClientSetup, LocalData, Task, vector_canary
from murmur.algorithms.class_statistics import StatisticsRelease, located, moments
from murmur.learning.codec import Codec
from murmur.learning.linear_model import require_linear
from murmur.privacy.events import Event
from murmur.privacy.mechanisms.clipping import clip_l2
from murmur.privacy.noise import NoiseGenerator


class ClassStatisticsClient(Client):
    """Releases its matrix once, with its share of the noise.

    The protected unit is a client: whatever its data, the matrix has norm 1 at most.

    Args:
        setup: tools, public data and budget, from the host; its budget must be for one round.
        components: number of leading features in the matrix; None: all.
        coordinates: "features"; or "pool": the server sends coordinates of the public pool's
            images, and an image has those of its ``neighbours`` by the first ``graph`` features.
        balance: b in [0, 1]: how far the client's small classes count as much as its large ones.
        graph, neighbours: for "pool"; None: all features, and one neighbour.
    """

    threats = ("local", "secure_aggregation")

    def __init__(
        self,
        setup: ClientSetup,
        *,
        components: int | None,
        coordinates: Literal["features", "pool"],
        balance: Annotated[float, Field(ge=0, le=1)],
        graph: int | None,
        neighbours: int | None,
    ) -> None:
        super().__init__(setup)
        require_linear(self.trainer, "class statistics")
        features = int(np.prod(self.trainer.input_shape))
        classes = self.trainer.num_classes
        self.release = StatisticsRelease(setup.budget, features, classes, components)
        self.balance = balance
        self.in_pool = coordinates == "pool"
        self.graph = graph
        self.neighbours = neighbours or 1

    def codec(self, task: Task) -> Codec:
        """Integers on the grid of the clipping norm."""
        return self.release.codec

    def event(self, task: Task) -> Event:
        """One noised vector of norm 1; TaskError for coordinates that do not fit the pool."""
        if self.in_pool:
            self._places(task)
        return self.release.event()

    def train(self, task: Task, data: LocalData) -> NDArray[np.float64]:
        """The matrix (k, C) of the first k features."""
        rows = data.images[data.indices].reshape(len(data), -1)
        if self.in_pool:
            pool = self.setup.public.reshape(len(self.setup.public), -1)
            near = rows[:, : self.graph]
            rows = located(near, pool[:, : self.graph], self._places(task), self.neighbours)
        released = rows[:, : self.release.shape[0]]
        labels = data.labels[data.indices]
        return moments(released, labels, self.trainer.num_classes, self.balance)

    def _places(self, task: Task) -> NDArray[np.float32]:
        """The coordinates of the pool's images, as the server sends them."""
        shape = (len(self.setup.public), self.release.shape[0])
        return self.array(task, "coordinates", np.float32, shape)

    def most_canaries(self) -> int:  # noqa: D102
        return math.prod(self.release.shape)

    def canary(self, task: Task, name: int, count: int) -> Canary:
        """Matrices (k, C) of norm 1."""
        canary = vector_canary(math.prod(self.release.shape), 1.0, self.setup.seed, name, count)
        result = clip_l2(canary.result, 1.0).reshape(self.release.shape)
        return Canary(result, -result, canary.direction)

    def privatize(self, update: NDArray, task: Task, noise: NoiseGenerator) -> NDArray[np.int64]:
        """The matrix as integers, noised."""
        return self.release.privatize(update, noise)
