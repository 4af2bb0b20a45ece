"""Federated averaging over clients that train by DP-SGD: every example is protected at its client.

Abadi et al., CCS 2016 (``murmur.algorithms.dpsgd`` has the equations), inside McMahan et al.,
AISTATS 2017. What leaves is the model, post-processing of the noisy sums.
"""

import math

import numpy as np
from numpy.typing import NDArray

from clients.base import Client, ClientSetup, Event, LocalData, NoiseGenerator, Task
from clients.local_training import PrivateTraining
from murmur.algorithms.dpsgd import LocalDpSgd
from murmur.learning.codec import Codec, WeightCodec


class DpSgdClient(Client):
    """Answers with its privately trained weights, weighted by its number of examples.

    The protected unit, a record or the whole client, is nulled or not, against whoever reads this
    client's messages. Sizes must be public: they set weights, sampling rates and noise.

    Args:
        setup: tools, public data and budget, from the host.
        local: its DP-SGD; the same as on the server.
    """

    units = ("client", "record")

    def __init__(self, setup: ClientSetup, *, local: LocalDpSgd) -> None:
        super().__init__(setup)
        self.training = PrivateTraining(self, local, setup.budget)

    def codec(self, task: Task) -> Codec:
        """All parameters (d,)."""
        return WeightCodec(self.trainer.num_parameters)

    def event(self, task: Task) -> Event:
        """The steps of one round, at the noise that keeps all of the budget's rounds within it."""
        self.require_asked(task)
        self.require_model(task)
        return self.training.event(self.setup.budget.epsilon, self.size(task.client))

    def answer(self, task: Task, data: LocalData, noise: NoiseGenerator) -> NDArray:
        """Parameters (d,) after DP-SGD; after plain SGD where ε is infinite."""
        epsilon = self.setup.budget.epsilon
        if math.isinf(epsilon):
            return self.train(task, data)
        return self.training.train(task, data, epsilon, noise)

    def train(self, task: Task, data: LocalData) -> NDArray[np.float32]:
        """Parameters (d,) after the same number of epochs without protection."""
        return self.training.open.train(task, data)

    def privatize(self, update: NDArray, task: Task, noise: NoiseGenerator) -> NDArray:
        """The weights themselves, which ``answer`` has protected while it trained."""
        return update

    def weight(self, client: int) -> int:
        """n_i, public in this algorithm."""
        return self.size(client)
