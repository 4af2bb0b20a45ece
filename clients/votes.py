"""Votes, the client: train locally, vote on the labels of public images, add a share of noise.

The question is PrivateKT's (``clients.privatekt``), the answer is for sums: one-hot rows plus the
client's share of discrete Gaussian noise (``murmur.papers.privatekt.Votes``), against a server that
sees sums only, or against everybody with ``privacy.threat=local``.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clients.base import Canary, Client, ClientSetup, Codec, Event, LocalData, NoiseGenerator, Task
from clients.local_training import LocalSgd
from clients.privatekt import PublicLabels
from murmur.papers.privatekt import Labeller, LabelQuery, Votes


class VotesClient(Client):
    """Answers with a vote for each public image that it is asked about.

    The protected unit is a client: an exchange moves one vote of each image. With
    ``threat=secure_aggregation`` the noise of one client alone does not keep the budget; that of
    all honest ones of a sum together does.

    Parameters
    ----------
    setup : ClientSetup
        What the host gives.
    K : int
        The most images that it votes on in one round, however many the server sends.
    local : LocalSgd
        Local training, with ``learner="sgd"``.
    learner, penalty, components
        Of ``Labeller``.
    abstain : float
        In [0, 1): the share of images of which it is least sure and for which it casts no vote.
    """

    threats = ("local", "secure_aggregation")

    def __init__(
        self,
        setup: ClientSetup,
        *,
        K: int,
        local: LocalSgd,
        learner: str,
        penalty: float,
        components: int | None,
        abstain: float,
    ) -> None:
        super().__init__(setup)
        labeller = Labeller(self.trainer, learner, penalty, components, abstain)
        self.labels = PublicLabels(self, local, labeller, K)

    def codec(self, task: Task) -> Codec:
        """Votes (K·C,) in grid steps."""
        return self._votes(task).codec

    def event(self, task: Task) -> Event:
        """One noised vector of as many votes as the task names images.

        TaskError in a round that is not the client's, or for images that are not the pool's.
        """
        self.require_asked(task)
        self.require_model(task)
        return self._votes(task).event()

    def train(self, task: Task, data: LocalData) -> NDArray[np.int64]:
        """Labels (K,) of the public images, ``ABSTAINED`` where no vote is cast."""
        return self.labels.of(task, data, self._images(task))

    def train_ahead(self, asked: Sequence[tuple[Task, LocalData]]) -> None:
        """See ``Client``."""
        self.labels.ahead(asked)

    def privatize(
        self, update: NDArray[np.int64], task: Task, noise: NoiseGenerator
    ) -> NDArray[np.int64]:
        """The votes (K·C,) in grid steps, noised; an image without a vote carries noise alike."""
        return self._votes(task).privatize(update, 0, noise)

    def canary(self, task: Task, name: int, count: int) -> Canary:
        """Labels (K,) at random, and the next class of each."""
        rows = np.arange(len(self._images(task)))
        return self.labels.canary(name, rows, len(rows))

    def _votes(self, task: Task) -> Votes:
        count = len(self._images(task))
        return Votes(LabelQuery(self.setup.budget, count, self.trainer.num_classes))

    def _images(self, task: Task) -> NDArray[np.int64]:
        return self.labels.images(task.arrays.get("indices"))
