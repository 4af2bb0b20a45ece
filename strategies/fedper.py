"""FedPer, the server: it averages the first layers, and never sees the clients' last ones.

Arivazhagan, Aggarwal, Singh, Choudhary, "Federated learning with personalization layers",
arXiv:1912.00818. The server's model is W_B, and beside it the personal layers W_P of the initial
model, with which newcomers begin. Its own test score would be that of a model that nobody uses, so
a simulation's researcher gets the mean of the clients' own instead (``OwnModels``), weighted as
updates are; the model of a newcomer is W_B with the initial W_P. These reports are no part of the
protocol, and devices refuse them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from murmur.algorithms.fedper import shared_size
from murmur.learning.vector_layout import VectorLayout
from murmur.privacy.protection import Protection
from murmur.round.own_models import OwnModels
from murmur.round.server_step import Sgd
from strategies.base import Forecast, Parameters, ServerSetup
from strategies.fedavg import FedAvg


class FedPer(FedAvg):
    """The server half.

    The global model (d,) is W_B followed by the initial W_P, which no round moves. Only W_B's
    updates are sent, bounded, noised and charged.

    Args:
        setup: What the ServerApp gives.
        server_step: How W_B follows the mean update.
        protection: As in ``FedAvg``; it sees vectors (|W_B|,).
        personal_layers: How many of the model's last layers stay with clients: at least 1, and not
            all of them.
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
        self.parts = VectorLayout(update=self.shared)
        self.rounds.own_models = OwnModels(setup, self.rounds.sums, ["accuracy"])

    def forecast(self) -> Forecast:
        """No ratio: a client's own layers have no noise, and they learn whatever the others' do."""
        of_sum = super().forecast() or Forecast.of(self.setup, None)
        return replace(of_sum, ratio=None)

    def apply(
        self, number: int, model: Parameters, means: Mapping[str, NDArray[np.float64]]
    ) -> Parameters:
        """The next model (d,): the shared layers move, newcomers' personal ones stay."""
        moved = super().apply(number, model[: self.shared], means)
        return np.concatenate([moved, model[self.shared :]])
