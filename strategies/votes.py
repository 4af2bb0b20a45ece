"""Votes, the server: pick public images, read the sum of the clients' votes on their labels, learn.

PrivateKT's question and learning (``strategies.privatekt``, ``murmur.papers.privatekt.Student``)
with answers that are made for sums: every client votes on the label of K public images and adds its
share of discrete Gaussian noise (``clients.votes``). The server sees noisy counts of all. This is
not in the paper. Symbols: K = ``K``.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from murmur.papers.privatekt import LabelQuery, Learning, Student
from murmur.papers.privatekt import Votes as Answers
from strategies.base import Codec, CohortStrategy, Event, Integers, Parameters, ServerSetup
from strategies.privatekt import require_images


class Votes(CohortStrategy):
    """The server half. See ``conf/strategy/votes.yaml`` for every knob.

    The protected unit is a client; with ``threat=secure_aggregation`` the noise that keeps the
    budget is that of all honest clients of a sum together.

    Parameters
    ----------
    setup : ServerSetup
        What the ServerApp gives; its public pool is what is asked about.
    K : int
        Public images on whose labels each client votes in a round; at most all of the pool.
    learning : Learning
        How the server's model learns from the counts.

    Attributes
    ----------
    indices : int64 array (K,)
        This round's images, ascending.
    student : Student
        The server's model and its buffer of answers.
    """

    algorithm = "PrivateKT by votes"
    threats = ("local", "secure_aggregation")
    difference = "nothing is claimed beyond what is proven."

    def __init__(self, setup: ServerSetup, *, K: int, learning: Learning) -> None:
        super().__init__(setup)
        require_images(K, len(setup.public))
        self.K = K
        self.student = Student(self.trainer, setup.public, setup.seed, learning)
        self.answers = Answers(LabelQuery(setup.budget, K, self.trainer.num_classes))
        self.indices = np.zeros(0, np.int64)

    def signal_to_noise(self) -> float | None:
        """That of the votes, of which 60% are for an image's class."""
        if not self.setup.budget.is_private:
            return None
        return self.student.lead(self.answers, self.setup.cohort_size, self.K)

    def would_help(self) -> list[str]:
        """Nothing: its labels are few numbers."""
        return []

    def task(self, number: int, model: Parameters) -> tuple[dict[str, NDArray], dict[str, int]]:
        """K distinct public images, drawn by the model's entropy on them."""
        self.indices = self.student.draw(number, model, self.K)
        return {"indices": self.indices}, {}

    def codec(self) -> Codec:
        """Votes in grid steps."""
        return self.answers.codec

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """Buffer what the counts say, fine-tune, self-train: all of it post-processing."""
        self.student.hear(number, self.indices, self.answers, total, weight)
        return self.student.learn(number, model)

    def release_event(self) -> Event:
        """One noised vector of K votes, by one client's own share of the noise."""
        return self.answers.event()

    def state(self) -> dict[str, NDArray]:
        """The knowledge buffer; the round's images are drawn anew, from the same seed and model."""
        return self.student.state()

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The inverse of ``state``."""
        self.student.restore(state)
