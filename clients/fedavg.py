"""Federated averaging, the client: local SGD, optionally with a proximal term (FedProx).

McMahan et al., "Communication-efficient learning of deep networks from decentralized data",
AISTATS 2017. Li et al., "Federated optimization in heterogeneous networks", MLSys 2020: the local
loss gains (μ/2)·‖w − w_global‖². What protects the update is a choice
(``murmur.privacy.protection``).
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from clients.base import Canary, Client, ClientSetup, LocalData, Task, TaskError, vector_canary
from clients.local_training import LocalSgd, LocalTraining
from murmur.learning.codec import Codec, vector_codec
from murmur.learning.vector_layout import VectorLayout
from murmur.privacy.events import Event
from murmur.privacy.mechanisms.clipping import MIN_NORM
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.protection import Protection


class ProtectedClient(Client):
    """Answers with a vector that a protection bounds, noises and prices; ``train`` is left open.

    Args:
        setup: tools, public data and budget, from the host.
        protection: makes a ``Protection`` for the client's budget and cohorts, from the same
            settings as the server's. What it supports, this client does.

    Attributes:
        parts: arrays that the vector holds; all parameters unless a class says otherwise.
    """

    def __init__(self, setup: ClientSetup, protection: Callable[..., Protection]) -> None:
        self.protection = protection(setup.budget, setup.cohorts)
        self.threats = self.protection.supported_threats(summed=self.summed)
        super().__init__(setup)
        self.parts = VectorLayout(update=self.trainer.num_parameters)

    def codec(self, task: Task) -> Codec:
        """The arrays side by side, then what the protection adds."""
        return vector_codec(
            self.parts.size + self.protection.num_extra_entries, self.protection.bound
        )

    def event(self, task: Task) -> Event:
        """Price of the protected update, to whoever reads the message.

        Not private where a trusted server is to add the noise. TaskError in a round that is not the
        client's, for another model, or without a clipping norm where there has to be one.
        """
        self.require_asked(task)
        self.require_model(task)
        self._clip(task)
        return self.protection.release_event()

    def privatize(self, update: NDArray, task: Task, noise: NoiseGenerator) -> NDArray:
        """Returns the protected update.

        Noise is in units of the clipping norm, so that a server that states another norm changes
        the update's scale, not what is proven. ``update`` may be overwritten.
        """
        return self.protection.release(update, self._clip(task), noise)

    def most_canaries(self) -> int:  # noqa: D102
        return self.parts.size

    def canary(self, task: Task, name: int, count: int) -> Canary:
        """Updates of the clipping norm, as long as a real one can be."""
        norm = self._clip(task) or self.protection.clip
        canary = vector_canary(self.parts.size, norm, self.setup.seed, name, count)
        direction = np.append(
            canary.direction, np.zeros(self.protection.num_extra_entries, np.int8)
        )
        return canary._replace(direction=direction)

    def weight(self, client: int) -> int:
        """n_i where sizes are public and nothing is protected; else every client counts alike."""
        known = self.setup.client_sizes is not None
        return self.size(client) if self.protection.weighted and known else 1

    def _clip(self, task: Task) -> float | None:
        """The clipping norm that the server states; TaskError where it has to and does not."""
        if "clip" not in self.protection.arrays():
            return None
        clip = float(self.array(task, "clip", np.float64, (1,))[0])
        if clip < MIN_NORM:
            raise TaskError(f"clip={clip}: must be at least {MIN_NORM:g}")
        return clip


class FedAvgClient(ProtectedClient):
    """Answers with the update w_i − w of local training, as the protection leaves it.

    Algorithms that train differently, but whose answers are protected and paid for in the same way,
    derive from it: they override ``share`` (what training starts from), ``train`` or ``parts``
    (which arrays leave), and nothing else.

    Args:
        setup, protection: as for ``ProtectedClient``.
        local: local training.
        proximal_mu: μ of FedProx, at least 0; 0: federated averaging.
    """

    def __init__(
        self,
        setup: ClientSetup,
        *,
        local: LocalSgd,
        protection: Callable[..., Protection],
        proximal_mu: float = 0.0,
    ) -> None:
        super().__init__(setup, protection)
        self.training = LocalTraining(self, local, proximal_mu)

    def train(self, task: Task, data: LocalData) -> NDArray:
        """The update (d,) of local training, as precise as its protection takes it.

        Zeros where training diverges.
        """
        trained = self.training.train(task, data)
        kind = self.protection.precision
        place = trained if trained.dtype == kind else None
        return np.subtract(trained, task.model, dtype=kind, out=place)

    def train_ahead(self, asked: Sequence[tuple[Task, LocalData]]) -> None:
        """See ``Client``."""
        self.training.train_ahead(asked)
