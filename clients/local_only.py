"""No federation, the client: train alone, round after round, and report the test score.

The reference that says what federation adds. The client's model stays on its own disk; what
leaves is how many examples of the public test set it gets right. A simulation's reference run,
not a method: it is not private.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clients.base import Client, ClientSetup, LocalData, NoiseGenerator, Task, TaskError
from clients.local_training import LocalSgd, LocalTraining
from murmur.learning.codec import WeightCodec
from murmur.learning.training.stack import ClientBatch
from murmur.privacy.events import Event, NonPrivateEvent


class LocalOnlyClient(Client):
    """Answers with its own model's accuracy on the shared test set.

    Each client remembers its whole ``model`` (d,) from round to round; the server's is where it
    starts. ValueError where the run has a finite budget.
    """

    def __init__(self, setup: ClientSetup, *, local: LocalSgd, proximal_mu: float) -> None:
        if setup.budget.is_private:
            raise ValueError(
                f"epsilon={setup.budget.epsilon}: without protection no finite budget can be kept; "
                "set privacy=none"
            )
        super().__init__(setup)
        self.training = LocalTraining(self, local, proximal_mu)

    def codec(self, task: Task) -> WeightCodec:
        """One number: the share of test examples that the client's model gets right."""
        return WeightCodec(1, bound=1.0)

    def event(self, task: Task) -> Event:
        """Nothing protects it, and the charge says so."""
        self.require_asked(task)
        self.require_model(task)
        return NonPrivateEvent()

    def share(self, task: Task, data: LocalData) -> ClientBatch:
        """Training goes on from the client's own model."""
        own = self.setup.state_dir.load(task.client, task.round - 1)
        start = self.require_model(task) if own is None else own["model"]
        return ClientBatch(start, data.indices, self.rng(task, "local training"))

    def train(self, task: Task, data: LocalData) -> NDArray[np.float32]:
        """The accuracy (1,) of the client's own model on the test set.

        TaskError where this client has no test set.
        """
        if self.setup.test is None:
            raise TaskError("strategy=local_only needs a test set on the client")
        model = self.training.train(task, data)
        self.setup.state_dir.save(task.client, task.round, {"model": model})
        self.trainer.load(model)
        return np.array([self.trainer.evaluate(*self.setup.test).accuracy], np.float32)

    def train_ahead(self, asked: Sequence[tuple[Task, LocalData]]) -> None:
        """See ``Client``."""
        self.training.train_ahead(asked)

    def privatize(
        self, update: NDArray[np.float32], task: Task, noise: NoiseGenerator
    ) -> NDArray[np.float32]:
        """The accuracy itself."""
        return update
