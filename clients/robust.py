"""Robust aggregation, the client: local SGD, whose update is a row by itself.

The server sees every client's row, so that it can leave out what does not fit. With
``protection=distributed`` a row carries the client's whole noise (``privacy.threat=local``); there
is no sum in which others' noise could count.
"""

from clients.fedavg import FedAvgClient


class RobustClient(FedAvgClient):
    """Answers with a row of its own; every client counts alike.

    With ``protection=rows`` the row leaves in the clear: a trusted server noises it. ValueError for
    a threat that relies on sums, and settings as for ``FedAvgClient``.
    """

    summed = False

    def weight(self, client: int) -> int:
        """Every client counts alike."""
        return 1
