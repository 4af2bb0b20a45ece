"""Votes, the server: pick public images, read the sum of the clients' votes on their labels, learn.

PrivateKT's question and learning (``strategies.privatekt``)
with answers that are made for sums: every client votes on the label of K public images and adds its
share of discrete Gaussian noise (``clients.votes``). The server sees noisy counts of all. This is
not in the paper. Symbols: K = ``K``.
"""

from murmur.algorithms.privatekt import answers
from murmur.algorithms.privatekt.knowledge import Learning
from strategies.base import ServerSetup
from strategies.privatekt import LabelStrategy


class Votes(LabelStrategy):
    """The server half. See ``conf/strategy/votes.yaml`` for every knob.

    The protected unit is a client; with ``threat=secure_aggregation`` the noise that keeps the
    budget is that of all honest clients of a sum together.

    Args:
        setup, K, learning: As for ``LabelStrategy``.
    """

    algorithm = "PrivateKT by votes"
    threats = ("local", "secure_aggregation")

    def __init__(self, setup: ServerSetup, *, K: int, learning: Learning) -> None:
        super().__init__(setup, answers.Votes, K, learning)
