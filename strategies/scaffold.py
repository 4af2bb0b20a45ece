"""SCAFFOLD, the server: averages updates, and the control variates that correct clients' drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: stochastic controlled averaging for
federated learning", ICML 2020, algorithm 1:

    x ← step(x, mean of y_i − x),   c ← c + |S|/N · mean of c_i⁺ − c_i

Symbols: S = the cohort, N = all clients, c = ``control``. The protection bounds and noises both
arrays together. Clients count alike.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from murmur.learning.objective import KINDS
from murmur.learning.vector_layout import VectorLayout
from murmur.privacy.protection import Protection
from murmur.round.server_step import Sgd
from murmur.settings import Positive
from strategies.base import Parameters, ServerSetup
from strategies.fedavg import FedAvg


class Scaffold(FedAvg):
    """The server half.

    Args:
        setup: What the ServerApp gives; |S|/N is its configured cohort over all clients.
        server_step: How x follows the mean update.
        protection: As in ``FedAvg``; it sees both arrays as one vector (2d,).
        control_scale: As the client's, which sends (c_i⁺ − c_i) times that; the server divides by
            it.

    Attributes:
        control: (d,) float32. c, sent to every cohort; 0 before the first round.
    """

    algorithm = "SCAFFOLD"
    tasks = KINDS

    def __init__(
        self,
        setup: ServerSetup,
        *,
        server_step: Sgd,
        protection: Callable[..., Protection],
        control_scale: Positive,
    ) -> None:
        super().__init__(setup, server_step=server_step, protection=protection)
        self.weighted = False
        size = self.trainer.num_parameters
        self.parts = VectorLayout(update=size, control=size)
        self.step = setup.cohort_size / setup.num_clients / control_scale
        self.control = np.zeros(size, np.float32)

    def task(self, number: int, model: Parameters) -> tuple[dict[str, NDArray], dict[str, int]]:
        """The server's c beside the model; like it, c is made of published means alone."""
        arrays, settings = super().task(number, model)
        return {**arrays, "control": self.control}, settings

    def apply(
        self, number: int, model: Parameters, means: Mapping[str, NDArray[np.float64]]
    ) -> Parameters:
        """The next model; c follows, whether or not the whole cohort answered."""
        self.control = (self.control + self.step * means["control"]).astype(np.float32)
        return super().apply(number, model, means)

    def state(self) -> dict[str, NDArray]:
        """Returns the state of averaging, and c."""
        return {**super().state(), "control": self.control}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The inverse of ``state``."""
        super().restore(state)
        self.control = state["control"].copy()
