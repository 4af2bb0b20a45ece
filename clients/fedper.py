"""FedPer, the client: the first layers are everybody's, the last ones its own.

Arivazhagan, Aggarwal, Singh, Choudhary, "Federated learning with personalization layers",
arXiv:1912.00818, algorithm 1:

    (W_B, W_Pj) ← local SGD from (W_B of the server, own W_Pj);  upload W_B's change

Symbols: W_B = ``shared`` entries at the beginning of the model, W_Pj = the rest, which stays on the
client's own disk. Only the change of W_B is clipped, noised and charged. A client that takes part
for the first time begins with the W_P of the initial model.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from clients.base import ClientSetup, Event, LocalData, NoiseGenerator, Task, TaskError
from clients.fedavg import FedAvgClient
from clients.local_training import LocalSgd
from murmur.algorithms.fedper import shared_size
from murmur.learning.codec import Codec, WeightCodec
from murmur.learning.training.stack import ClientBatch
from murmur.learning.vector_layout import VectorLayout
from murmur.privacy.protection import Protection

EVALUATE = "evaluate"


class FedPerClient(FedAvgClient):
    """Answers with the update of the shared layers; for a simulation's researcher with its score.

    Each client remembers its personal layers (``personal``) from round to round.

    Args:
        setup, local, protection, proximal_mu: as for ``FedAvgClient``; the protection sees vectors
            (|W_B|,).
        personal_layers: number of last layers that stay personal; the same as on the server.
    """

    purposes = ("train", EVALUATE)

    def __init__(
        self,
        setup: ClientSetup,
        *,
        local: LocalSgd,
        protection: Callable[..., Protection],
        personal_layers: int,
        proximal_mu: float = 0.0,
    ) -> None:
        super().__init__(setup, local=local, protection=protection, proximal_mu=proximal_mu)
        self.shared = shared_size(self.trainer, personal_layers)
        self.parts = VectorLayout(update=self.shared)

    def codec(self, task: Task) -> Codec:
        """The shared layers; for the report one number in [0, 1]."""
        if task.purpose == EVALUATE:
            return WeightCodec(1, bound=1.0)
        return super().codec(task)

    def event(self, task: Task) -> Event | None:  # type: ignore[override]
        """Price of the protected update; None for a report, which devices refuse.

        A state that is damaged or gone raises here, before anything is charged.
        """
        if task.purpose == EVALUATE:
            self.require_model(task)
            return None
        event = super().event(task)
        self.setup.state_dir.load(task.client, task.round - 1)  # refused where it is gone
        return event

    def share(self, task: Task, data: LocalData) -> ClientBatch:
        """Training begins from the shared layers of the server and the client's own ones."""
        share = super().share(task, data)
        return ClientBatch(self._own_model(task, task.round - 1), share.indices, share.rng)

    def train(self, task: Task, data: LocalData) -> NDArray:
        """The update of the shared layers (shared,); the client's own ones are kept.

        A round that is asked again starts from the personal layers of the round before.
        """
        if task.purpose == EVALUATE:
            return self._score(task, data)
        model = self.training.train(task, data)
        self.setup.state_dir.save(task.client, task.round, {"personal": model[self.shared :]})
        return np.subtract(model[: self.shared], task.model[: self.shared], dtype=np.float64)

    def privatize(self, update: NDArray, task: Task, noise: NoiseGenerator) -> NDArray:
        """Returns the protected update; a report as it is."""
        if task.purpose == EVALUATE:
            return update
        return super().privatize(update, task, noise)

    def _own_model(self, task: Task, as_of: int) -> NDArray[np.float32]:
        """(d,): the server's shared layers and the client's own as of round ``as_of``."""
        model = self.require_model(task).copy()
        own = self.setup.state_dir.load(task.client, as_of)
        if own is not None:
            model[self.shared :] = own["personal"]
        return model

    def _score(self, task: Task, data: LocalData) -> NDArray[np.float32]:
        """Accuracy (1,) of its own model on the test set, each class as often as in its data."""
        if self.setup.test is None:
            raise TaskError("test: the report needs a test set on the client")
        images, labels = self.setup.test
        self.trainer.load(self._own_model(task, task.round))
        right = self.trainer.logits(images).argmax(axis=1) == labels
        classes = self.trainer.num_classes
        mine = np.bincount(data.labels[data.indices], minlength=classes)
        tested = np.bincount(labels, minlength=classes)
        weights = np.where(tested > 0, mine / np.maximum(tested, 1), 0.0)[labels]
        return np.array([np.average(right, weights=weights)], np.float32)
