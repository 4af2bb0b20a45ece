"""SCAFFOLD, the client: local steps corrected by c − c_i, and a control variate of its own.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: stochastic controlled averaging for
federated learning", ICML 2020, algorithm 1 with option II:

    y_i ← y_i − η (g_i(y_i) − c_i + c),   c_i⁺ = c_i − c + (x − y_i)/(Kη)

Symbols: K = local steps, η = learning rate. c_i stays on the client's own disk; what leaves beside
the update is (c_i⁺ − c_i) times ``control_scale``, which brings both to about one size.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from clients.base import ClientSetup, Event, LocalData, Task
from clients.fedavg import FedAvgClient
from clients.local_training import LocalSgd
from murmur.learning.training.stack import ClientBatch
from murmur.learning.vector_layout import VectorLayout
from murmur.privacy.protection import Protection


class ScaffoldClient(FedAvgClient):
    """Answers with its update and the change of its control variate; clients count alike.

    Both arrays are one vector to the protection: bounded, noised and charged together. Each client
    remembers its ``control`` c_i (d,) from round to round; a newcomer's is 0.

    Args:
        setup, local, protection, proximal_mu: as for ``FedAvgClient``; the protection sees vectors
            (2d,).
        control_scale: factor of the change of c_i before it leaves; the same as on the server.
    """

    def __init__(
        self,
        setup: ClientSetup,
        *,
        local: LocalSgd,
        protection: Callable[..., Protection],
        control_scale: float,
        proximal_mu: float = 0.0,
    ) -> None:
        super().__init__(setup, local=local, protection=protection, proximal_mu=proximal_mu)
        size = self.trainer.num_parameters
        self.parts = VectorLayout(update=size, control=size)
        self.control_scale = control_scale

    def event(self, task: Task) -> Event:
        """Price of both protected arrays together.

        TaskError unless the task has c, finite, float32 (d,).
        """
        self.array(task, "control", np.float32, (self.trainer.num_parameters,))
        return super().event(task)

    def share(self, task: Task, data: LocalData) -> ClientBatch:
        """Every step is corrected by c − c_i, (d,)."""
        share = super().share(task, data)
        return ClientBatch(share.start, share.indices, share.rng, self._correction(task))

    def _correction(self, task: Task) -> NDArray[np.float32]:
        own = self.setup.state_dir.load(task.client, task.round - 1)
        control = task.arrays["control"]
        return control if own is None else control - own["control"]

    def train(self, task: Task, data: LocalData) -> NDArray[np.float64]:
        """Both arrays side by side (2d,); c_i⁺ is kept.

        K of option II is the number of local steps over this client's examples.
        """
        trained = self.training.train(task, data)
        update = np.subtract(trained, task.model, dtype=np.float64)
        sgd = self.training.sgd
        drift = update / (sgd.count(len(data)) * sgd.learning_rate)  # (y_i − x)/(Kη)
        own = (-self._correction(task) - drift).astype(np.float32)
        self.setup.state_dir.save(task.client, task.round, {"control": own})
        change = -drift - task.arrays["control"]
        return self.parts.join(update=update, control=change * self.control_scale)

    def weight(self, client: int) -> int:
        """Every client counts alike."""
        return 1
