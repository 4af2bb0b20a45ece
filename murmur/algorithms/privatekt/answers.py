"""Answers: what one client releases about the images, its price, and what a sum of answers says.

Each kind of answer has a ``codec``, the form in which answers travel, an ``event`` and a way to
``privatize``. Its ``evidence``, ``counts`` and ``estimate`` read a ``total``, the sum of the
answers of ``weight`` clients, and are post-processing. Rows are images that were asked about: K,
or K·n where every client has its own. Symbols: K = labels of one client, C = ``classes``,
n = clients, β = ``keep``.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from murmur.algorithms.privatekt.own_label_codec import OwnLabelCodec
from murmur.learning.codec import Codec, GridCodec, Integers, LabelCodec
from murmur.privacy.budget import Budget
from murmur.privacy.events import Event, Hiding, NonPrivateEvent
from murmur.privacy.mechanisms.distributed_gaussian import DistributedGaussian, NoNoise, SharedNoise
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse
from murmur.privacy.noise import NoiseGenerator

AGREEMENT = 0.5  # the share of clients' labels that are taken to be right before noise
ABSTAINED = -1  # a label that is no vote


@dataclass(frozen=True)
class LabelQuery:
    """A client's question: how many labels of how many classes, and the budget of the answer.

    Attributes:
        budget: of the client.
        count: K, labels of one client in one round.
        classes: C.
        clients: of the cohort, where each has images of its own; else 1.
    """

    budget: Budget
    count: int
    classes: int
    clients: int = 1


class SharedLabels:
    """Randomised labels of the same images by all clients, the paper's way.

    Each client's K labels are ε-DP for its whole data set, against whoever reads them. As reports
    in shared cells a sum may hide them further (``Hiding.REPORTS``).

    Attributes:
        mechanism: the randomiser of one label, at ε/K; None without a budget.
    """

    hiding = Hiding.REPORTS

    def __init__(self, query: LabelQuery) -> None:
        self.query = query
        self.codec: Codec = LabelCodec(query.count, query.classes)
        self.mechanism = _randomizer(query.budget, query.count, query.classes)

    @property
    def keep(self) -> float:
        """β, the share of labels that are kept; 1 without protection."""
        if self.mechanism is None:
            return 1.0
        return self.mechanism.keep

    def event(self) -> Event:
        """K labels at ε/K each."""
        if self.mechanism is None:
            return NonPrivateEvent()
        return self.mechanism.release(self.query.count, self.hiding)

    def privatize(self, labels: NDArray[np.int64], place: int, rng: NoiseGenerator) -> NDArray:
        """Randomised ``labels`` (K,), as bytes.

        ``place``: of the client in the cohort, from 0; read only where clients have images of their
        own.
        """
        if self.mechanism is None:
            return labels.astype(np.uint8)
        return self.mechanism.privatize(labels, rng)

    def margin_in_sigmas(self, clients: float, agreement: float = 0.6) -> float:
        """Margin of an image's right class over another one, in standard errors of the noise.

        ``agreement``: the share of ``clients`` that label it rightly; the others do so evenly.
        Counts of randomised labels are binomial.
        """
        right, wrong = self._reported(agreement)
        variance = right + wrong - (right - wrong) ** 2
        return (right - wrong) * math.sqrt(clients / variance)

    def evidence(self, total: Integers, weight: int) -> NDArray[np.float64]:
        """Ln P(answers | class), (rows, C), up to a constant for each row.

        Each report of a class speaks for it by the randomiser's law and ``AGREEMENT``.
        """
        right, wrong = self._reported(AGREEMENT)
        return total.astype(np.float64) * math.log(right / wrong)

    def _reported(self, agreement: float) -> tuple[float, float]:
        """P(report = c) where c is the right class of an image, and where it is another one."""
        uniform = (1 - self.keep) / self.query.classes
        others = self.keep * (1 - agreement) / (self.query.classes - 1)
        return self.keep * agreement + uniform, others + uniform

    def counts(self, total: Integers) -> NDArray[np.float64]:
        """How often each class was named, (rows, C): the histogram that travels."""
        return total.astype(np.float64)

    def estimate(self, total: Integers, weight: int) -> NDArray[np.float64]:
        """ŷ (rows, C), unbiased shares of the clients that name each class (eq. 3).

        They may leave [0, 1]. Raises ValueError where nobody answered.
        """
        if self.mechanism is None:
            return self.counts(total) / weight
        return self.mechanism.debias(total, weight)


class DisjointLabels(SharedLabels):
    """Randomised labels, each client's of its own images.

    No other client's report falls into its rows, so that a sum shows each by itself: nothing hides
    them but the randomiser.
    """

    hiding = Hiding.NOT

    def __init__(self, query: LabelQuery) -> None:
        super().__init__(query)
        self.codec = OwnLabelCodec(query.count, query.clients, query.classes)

    def privatize(self, labels: NDArray[np.int64], place: int, rng: NoiseGenerator) -> NDArray:
        """Cells of the cohort's histogram: which images, and what they are said to be."""
        released = super().privatize(labels, place, rng)
        images = place * self.query.count + np.arange(len(labels))
        return images * self.query.classes + released


class Votes:
    """One-hot rows (or a zero row: no vote), each client with its share of a sum's noise.

    Exchanging a client moves one vote in each row: Δ² = 2K. Where the budget is against who sees
    sums only, the noise that keeps it is that of all honest clients together.

    Attributes:
        noise: one client's share; ``NoNoise`` without a budget.
        steps: how many grid steps a vote is.
    """

    def __init__(self, query: LabelQuery) -> None:
        self.query = query
        self.noise = _vote_noise(query.budget, query.count)
        max_abs = self.noise.max_abs
        self.steps = round(1 / self.noise.grid)  # of a vote
        size = query.count * query.classes
        self.codec = GridCodec(size, self.noise.grid, self.steps + max_abs, max_abs)

    def event(self) -> Event:
        """One noised vector of K votes."""
        return self.noise.release()

    def privatize(self, labels: NDArray[np.int64], place: int, rng: NoiseGenerator) -> NDArray:
        """The votes in grid steps, noised; ``ABSTAINED`` is a zero row."""
        votes = np.zeros((len(labels), self.query.classes), np.int64)
        cast = np.flatnonzero(labels != ABSTAINED)
        votes[cast, labels[cast]] = self.steps
        return self.noise.privatize_integers(votes.ravel(), rng)

    def counts(self, total: Integers) -> NDArray[np.float64]:
        """Noisy votes, (rows, C)."""
        return self.codec.mean(total, 1).reshape(self.query.count, -1)

    def estimate(self, total: Integers, weight: int) -> NDArray[np.float64]:
        """Their shares, (rows, C), which are unbiased as they are."""
        return self.counts(total) / weight

    def margin_in_sigmas(self, clients: float, agreement: float = 0.6) -> float:
        """Margin as of ``SharedLabels``; both counts hold Gaussian noise."""
        sigma = self.noise.deviation(clients)
        if sigma == 0:
            return math.inf
        votes = clients * (agreement - (1 - agreement) / (self.query.classes - 1))
        return votes / (math.sqrt(2) * sigma)

    def evidence(self, total: Integers, weight: int) -> NDArray[np.float64]:
        """Ln P(answers | class), as of ``SharedLabels``, by a Gaussian law around votes.

        The margin of the right class is estimated from all votes; where these vary no more than
        noise does, it is 0 and nothing is said.
        """
        classes = self.query.classes
        votes = self.counts(total)
        votes = votes - votes.mean(axis=1, keepdims=True)
        variance = self.noise.deviation(weight) ** 2 + weight / classes
        surplus = float((votes**2).sum(axis=1).mean()) - (classes - 1) * variance
        margin = math.sqrt(max(0.0, surplus * classes / (classes - 1)))
        return votes * (margin / variance)


AnswerKind = SharedLabels | Votes


def answer_kind(answers: str) -> type[SharedLabels]:
    """The kind of answers that ``strategy.answers`` of ``strategy=privatekt`` names.

    Raises:
        ValueError: there is no such kind; for ``votes`` it names the strategy that has them.
    """
    kinds = {"paper": SharedLabels, "disjoint": DisjointLabels}
    if answers == "votes":
        raise ValueError("answers=votes: is an algorithm of its own now; set strategy=votes")
    if answers not in kinds:
        raise ValueError(f"answers={answers}: must be one of {', '.join(kinds)}")
    return kinds[answers]


@lru_cache(maxsize=64)
def _randomizer(budget: Budget, count: int, classes: int) -> RandomizedResponse | None:
    if not budget.is_private:
        return None
    epsilon = budget.per_round(
        lambda each: RandomizedResponse(each / count, classes).release(count)
    )
    return RandomizedResponse(epsilon / count, classes)


@lru_cache(maxsize=64)
def _vote_noise(budget: Budget, count: int) -> SharedNoise:
    """Noise in votes, on a grid that a vote is a whole number of steps of."""
    if not budget.is_private:
        return NoNoise()
    return DistributedGaussian.calibrated(
        budget.epsilon,
        budget.delta_of_noise,
        math.sqrt(2 * count),
        honest_clients=budget.honest_clients,
        releases=budget.releases,
        coarsest=1.0,
    )
