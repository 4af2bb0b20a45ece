"""Three ways in which clients answer with labels of public images: what travels, and its price.

* ``paper``: all clients label the same K images; each label by randomised response at ε/K (Qi et
  al. 2023, eq. 2 and 6). Against whoever reads messages.
* ``disjoint``: the same, but every client has K images of its own. Few labels each, so that each is
  kept with a useful probability; the server computes posteriors instead of counts.
* ``votes``: all clients label the same K images with one-hot rows (or a zero row: no vote), plus
  their share of discrete Gaussian noise. Exchanging a client moves one vote in each row: Δ² = 2K.
  Against a server that sees secure sums only, unless ``budget.threat`` is local.

``evidence`` is what the answers say about the classes of the images asked about: logarithms of
likelihoods, up to a constant for each image. C classes, n clients.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from murmur.learning.codec import Codec, GridCodec, Integers, LabelCodec
from murmur.papers.privatekt.own_labels import OwnLabelCodec
from murmur.privacy.budget import Budget
from murmur.privacy.events import Event, Hiding, NonPrivateEvent
from murmur.privacy.mechanisms import RandomizedResponse
from murmur.privacy.mechanisms.distributed_gaussian import DistributedGaussian
from murmur.privacy.noise import NoiseGenerator

WAYS = ("paper", "disjoint", "votes")
AGREEMENT = 0.5  # the share of clients' labels that are taken to be right before noise
ABSTAINED = -1  # a label that is no vote


@dataclass(frozen=True)
class LabelQuery:
    """``budget`` of a client, ``count`` labels of each, ``classes``, ``clients`` of the cohort."""

    budget: Budget
    count: int
    classes: int
    clients: int = 1


class Answers(ABC):
    """How ``query`` is answered, and against whom that can keep a budget."""

    threats: ClassVar[tuple[str, ...]] = ("local",)
    codec: Codec

    def __init__(self, query: LabelQuery) -> None:
        self.query = query

    @abstractmethod
    def event(self) -> Event:
        """What one client's answer costs."""

    @abstractmethod
    def privatize(self, labels: NDArray[np.int64], place: int, rng: NoiseGenerator) -> NDArray:
        """The release of ``labels`` (K,) by the client in ``place`` of the cohort."""

    @abstractmethod
    def lead(self, clients: int, agreement: float = 0.6) -> float:
        """How far the right class of an image leads another, in standard errors of the noise.

        ``agreement``: the share of ``clients`` that label it rightly; the others do so evenly.
        """

    @abstractmethod
    def evidence(self, total: Integers, weight: int) -> NDArray[np.float64]:
        """Ln P(answers | class) of every image asked about, (images, C)."""


class SharedLabels(Answers):
    """``paper``: randomised labels of the same images."""

    hiding = Hiding.REPORTS

    def __init__(self, query: LabelQuery) -> None:
        super().__init__(query)
        self.codec = LabelCodec(query.count, query.classes)
        self.mechanism = _randomizer(query.budget, query.count, query.classes)

    @property
    def keep(self) -> float:
        """β, the share of labels that are kept; 1 without protection."""
        return 1.0 if self.mechanism is None else self.mechanism.keep

    def event(self) -> Event:
        """K labels at ε/K each."""
        if self.mechanism is None:
            return NonPrivateEvent()
        return self.mechanism.release(self.query.count, self.hiding)

    def privatize(self, labels: NDArray[np.int64], place: int, rng: NoiseGenerator) -> NDArray:
        """Randomised labels, as bytes."""
        if self.mechanism is None:
            return labels.astype(np.uint8)
        return self.mechanism.privatize(labels, rng)

    def lead(self, clients: int, agreement: float = 0.6) -> float:
        """Counts of randomised labels are binomial."""
        uniform = (1 - self.keep) / self.query.classes
        right = self.keep * agreement + uniform
        wrong = self.keep * (1 - agreement) / (self.query.classes - 1) + uniform
        variance = right + wrong - (right - wrong) ** 2
        return (right - wrong) * math.sqrt(clients / variance)

    def evidence(self, total: Integers, weight: int) -> NDArray[np.float64]:
        """Each report of a class speaks for it by the randomiser's law and ``AGREEMENT``."""
        classes = self.query.classes
        uniform = (1 - self.keep) / classes
        right = self.keep * AGREEMENT + uniform
        wrong = self.keep * (1 - AGREEMENT) / (classes - 1) + uniform
        return total.astype(np.float64) * math.log(right / wrong)


class DisjointLabels(SharedLabels):
    """``disjoint``: randomised labels, each client's of its own images.

    No other client's report falls into its rows, so that a sum shows each by itself.
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


class Votes(Answers):
    """``votes``: one-hot rows with a share of the noise of a sum."""

    threats = ("local", "secure_aggregation")

    def __init__(self, query: LabelQuery) -> None:
        super().__init__(query)
        self.noise = _vote_noise(query.budget, query.count)
        grid, reach = (1.0, 0) if self.noise is None else (self.noise.grid, self.noise.reach)
        self.steps = round(1 / grid)  # of a vote
        size = query.count * query.classes
        self.codec = self.grid = GridCodec(size, grid, self.steps + reach, reach)

    def event(self) -> Event:
        """One noised vector of K votes."""
        if self.noise is None:
            return NonPrivateEvent()
        return self.noise.release()

    def privatize(self, labels: NDArray[np.int64], place: int, rng: NoiseGenerator) -> NDArray:
        """The votes in grid steps, noised; ``ABSTAINED`` is a zero row."""
        votes = np.zeros((len(labels), self.query.classes), np.int64)
        cast = np.flatnonzero(labels != ABSTAINED)
        votes[cast, labels[cast]] = self.steps
        steps = votes.ravel()
        return steps if self.noise is None else self.noise.privatize_integers(steps, rng)

    def counts(self, total: Integers) -> NDArray[np.float64]:
        """Noisy votes (K, C)."""
        return self.grid.mean(total, 1).reshape(self.query.count, -1)

    def _sigma(self, clients: int) -> float:
        """On one count of a sum over ``clients``, in votes."""
        return 0.0 if self.noise is None else self.noise.share * self.noise.grid * clients**0.5

    def lead(self, clients: int, agreement: float = 0.6) -> float:
        """Both counts hold Gaussian noise."""
        votes = clients * (agreement - (1 - agreement) / (self.query.classes - 1))
        sigma = self._sigma(clients)
        return votes / (math.sqrt(2) * sigma) if sigma else math.inf

    def evidence(self, total: Integers, weight: int) -> NDArray[np.float64]:
        """By a Gaussian law around votes whose lead for the right class is estimated from all.

        Where the votes vary no more than noise does, the lead is 0 and nothing is said.
        """
        classes = self.query.classes
        votes = self.counts(total)
        votes = votes - votes.mean(axis=1, keepdims=True)
        variance = self._sigma(weight) ** 2 + weight / classes
        surplus = float((votes**2).sum(axis=1).mean()) - (classes - 1) * variance
        lead = math.sqrt(max(0.0, surplus * classes / (classes - 1)))
        return votes * (lead / variance)


def way_of(way: str) -> type[Answers]:
    """One of ``WAYS``; ValueError for another."""
    kinds: dict[str, type[Answers]] = {
        "paper": SharedLabels,
        "disjoint": DisjointLabels,
        "votes": Votes,
    }
    if way not in kinds:
        raise ValueError(f"answers={way!r}: must be one of {', '.join(WAYS)}")
    return kinds[way]


@lru_cache(maxsize=64)
def _randomizer(budget: Budget, count: int, classes: int) -> RandomizedResponse | None:
    if not budget.is_private:
        return None
    epsilon = budget.per_round(
        lambda each: RandomizedResponse(each / count, classes).release(count)
    )
    return RandomizedResponse(epsilon / count, classes)


@lru_cache(maxsize=64)
def _vote_noise(budget: Budget, count: int) -> DistributedGaussian | None:
    """Noise in votes, on a grid that a vote is a whole number of steps of."""
    if not budget.is_private:
        return None
    return DistributedGaussian.calibrated(
        budget.epsilon,
        budget.delta_of_noise,
        math.sqrt(2 * count),
        honest_clients=budget.honest_clients,
        releases=budget.releases,
        coarsest=1.0,
    )
