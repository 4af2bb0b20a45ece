"""Votes, the client: train locally, vote on the labels of public images, add a share of noise.

The question is PrivateKT's (``clients.privatekt``), the answer is for sums: one-hot rows plus the
client's share of discrete Gaussian noise (``murmur.algorithms.privatekt``), against a server that
sees sums only, or against everybody with ``privacy.threat=local``.
"""

from clients.base import ClientSetup
from clients.local_training import LocalSgd
from clients.privatekt import LabelClient
from murmur.algorithms.privatekt.answers import Votes
from murmur.algorithms.privatekt.labeller import Labeller
from murmur.settings import Decay


class VotesClient(LabelClient):
    """Answers with a vote for each public image that it is asked about.

    The protected unit is a client: an exchange moves one vote of each image. With
    ``threat=secure_aggregation`` the noise of one client alone does not keep the budget; that of
    all honest ones of a sum together does.

    Args:
        setup, K, local, labeller: as for ``LabelClient``.
        abstain: fraction of images in [0, 1), the least certain ones, without a vote.
    """

    threats = ("local", "secure_aggregation")

    def __init__(
        self, setup: ClientSetup, *, K: int, local: LocalSgd, labeller: Labeller, abstain: Decay
    ) -> None:
        super().__init__(setup, Votes, K, local, labeller, abstain)
