"""Robust aggregation, the client: local SGD, whose update is a row by itself.

The server sees every client's row, so that it can leave out what does not fit. With
``protection=distributed`` a row carries the client's whole noise (``privacy.threat=local``); there
is no sum in which others' noise could count.
"""

from collections.abc import Callable

from clients.base import ClientSetup
from clients.fedavg import FedAvgClient
from clients.local_training import LocalSgd
from murmur.privacy.protection import Protection

THREATS = ("local", "central")


class RobustClient(FedAvgClient):
    """Answers with a row of its own; every client counts alike.

    With ``protection=rows`` the row leaves in the clear: a trusted server noises it. ValueError for
    a threat that relies on sums.
    """

    summed = False

    def __init__(
        self,
        setup: ClientSetup,
        *,
        local: LocalSgd,
        protection: Callable[..., Protection],
        proximal_mu: float = 0.0,
    ) -> None:
        setup.budget.require_threat("robust aggregation", THREATS)
        super().__init__(setup, local=local, protection=protection, proximal_mu=proximal_mu)

    def weight(self, client: int) -> int:
        """Every client counts alike."""
        return 1
