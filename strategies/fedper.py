"""FedPer, the server: it averages the first layers, and never sees the clients' last ones.

Arivazhagan, Aggarwal, Singh, Choudhary, "Federated learning with personalization layers",
arXiv:1912.00818. The server's model is W_B, and beside it the personal layers W_P of the initial
model, with which newcomers begin. Its own test score would be that of a model that nobody uses, so
a simulation's researcher gets the mean of the clients' own instead (``configure_evaluate``): these
reports are no part of the protocol, and devices refuse them.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from murmur.learning.codec import Parts
from murmur.papers.fedper import shared_size
from murmur.privacy.protection import Protection
from murmur.round.server_step import Sgd
from strategies.base import Parameters, ServerSetup
from strategies.fedavg import FedAvg
from strategies.parts import OwnModels


class FedPer(FedAvg):
    """The server half.

    The global model (d,) is W_B followed by the initial W_P, which no round moves. Only W_B's
    updates are sent, bounded, noised and charged.

    Parameters
    ----------
    setup : ServerSetup
        What the ServerApp gives.
    server_step : Sgd
        How W_B follows the mean update.
    protection : callable
        As in ``FedAvg``; it sees vectors (|W_B|,).
    personal_layers : int
        How many of the model's last layers stay with clients: at least 1, and not all of them.
    """

    algorithm = "federated averaging with personal layers"

    def __init__(
        self,
        setup: ServerSetup,
        *,
        server_step: Sgd,
        protection: Callable[..., Protection],
        personal_layers: int,
    ) -> None:
        super().__init__(setup, server_step=server_step, protection=protection)
        self.shared = shared_size(self.trainer, personal_layers)
        self.parts = Parts(update=self.shared)
        self.own_models = OwnModels(setup, self.sums, ["accuracy"])

    def apply(
        self, number: int, model: Parameters, means: Mapping[str, NDArray[np.float64]]
    ) -> Parameters:
        """The next model (d,): the shared layers move, newcomers' personal ones stay."""
        moved = super().apply(number, model[: self.shared], means)
        return np.concatenate([moved, model[self.shared :]])

    def signal_to_noise(self) -> None:
        """Not told: see ``scores_own_models``."""
        return None

    @property
    def scores_own_models(self) -> bool:  # noqa: D102
        return True

    def evaluate(self, model: Parameters) -> dict[str, float]:
        """The mean accuracy of the clients' own models, if they were asked.

        Weighted as updates are. Empty before the first round, and on devices, which do not answer.
        """
        return self.own_models.read()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask for the test accuracy of every client's own model, weighted as updates are.

        After each round, of all clients, whether they have ever taken part or not: the model of a
        newcomer is W_B with the initial W_P.
        """
        return self.own_models.ask(self.first_round + server_round, arrays, grid, self.weights())

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Keep what they report."""
        self.own_models.take(replies)
        return None
