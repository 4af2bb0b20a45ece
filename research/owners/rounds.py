"""Gradient rounds in one process: the server is the product's, the clients are one array.

``Direct`` asks the strategy of an experiment for its centre and its rounds and gives it what the
clients' secure sum would hold: the sum of their clipped gradients, computed at once, plus one
Gaussian of the deviation that all of the clients' shares have together. No message, ledger or mask
stands between, and noise is seeded: it says what a run would reach, and protects nobody. It takes
seconds, so that settings can be chosen with it (``research.owners.choose``).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.special import softmax

from fl_app.run.validated import ValidatedRun
from murmur.algorithms.gradient_rounds import flattened, log_frequencies
from murmur.learning.linear_model import directions, unit
from murmur.learning.metrics import area_under_curve, over_owners
from murmur.privacy.mechanisms.clipping import CLIP_STEPS
from murmur.random import experiment_rng
from murmur.round.question import Outcome
from strategies.gradient_rounds import GradientRounds

HELD = 0.10  # of all owners, those that settings are chosen on
TEST = 0.15  # of all owners, those that are no clients at all
Scores = dict[str, float]


class GradientSettings(Protocol):
    """The settings that a client's gradient depends on, as ``conf/strategy`` names them."""

    constant: float
    balance: float
    logit_adjustment: float
    flatten: float


@dataclass
class Owners:
    """The clients of a run, as one array.

    Attributes:
        features: of all their rows, (N, d), sparse where most of it is 0.
        labels: (N,).
        whose: (N,), numbers of owners from 0 on, ascending.
    """

    features: NDArray[np.float32] | csr_matrix
    labels: NDArray[np.int64]
    whose: NDArray[np.int64]

    @property
    def count(self) -> int:
        """How many owners there are."""
        return int(self.whose.max()) + 1

    @cached_property
    def rows(self) -> list[slice]:
        """Where each owner's rows are."""
        ends = np.cumsum(np.bincount(self.whose)).tolist()
        return [slice(start, end) for start, end in itertools.pairwise([0, *ends])]

    @cached_property
    def blocks(self) -> list[NDArray[np.float32] | csr_matrix]:
        """The owners' features, one by one."""
        return [self.features[rows] for rows in self.rows]

    def centre(self) -> NDArray[np.float64]:
        """The sum over owners of the means of their directions, (d,)."""
        sizes = np.bincount(self.whose)
        return (1 / sizes[self.whose]) @ unit(np.asarray(self.features))

    def centred(self, centre: NDArray[np.floating], radius: float) -> Owners:
        """The same with what a ``centred`` model's layer sees."""
        seen = directions(unit(np.asarray(self.features)), centre, radius)
        return Owners(seen.astype(np.float32), self.labels, self.whose)

    def adjustments(self, classes: int) -> NDArray[np.float64]:
        """The log class frequencies of each row's owner, (N, classes)."""
        found = [log_frequencies(self.labels[rows], classes) for rows in self.rows]
        return np.array(found)[self.whose]

    def gradients(
        self, weights: NDArray, biases: NDArray, settings: GradientSettings, clip: float
    ) -> NDArray[np.float64]:
        """The sum of the owners' clipped gradients, (1 + d, classes), constant first."""
        logits = self.features @ weights.astype(np.float32) + biases
        if settings.logit_adjustment:
            logits = logits + settings.logit_adjustment * self.adjustments(weights.shape[1])
        residuals = -softmax(logits, axis=1)
        residuals[np.arange(len(self.labels)), self.labels] += 1
        found = self._slopes(residuals, settings.constant)
        found /= np.bincount(self.whose)[:, None, None] ** settings.balance
        found = flattened(found, settings.flatten)
        lengths = np.sqrt(np.einsum("odk,odk->o", found, found))
        return np.einsum("o,odk->dk", np.minimum(1, clip / np.maximum(lengths, 1e-12)), found)

    def _slopes(self, residuals: NDArray[np.floating], constant: float) -> NDArray[np.float64]:
        """The sums over each owner's rows of (constant, features)·residualsᵀ.

        ``residuals`` (N, classes); the result is (owners, 1 + d, classes).
        """
        width, classes = self.features.shape[1], residuals.shape[1]
        if isinstance(self.features, csr_matrix):
            return self._sparse_slopes(residuals, constant)
        found = np.empty((self.count, 1 + width, classes))
        for each, block, rows in zip(found, self.blocks, self.rows, strict=True):
            own = residuals[rows].astype(np.float32)
            each[0] = constant * own.sum(axis=0)
            each[1:] = block.T @ own
        return found

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Where each entry of sparse features is in a table of owners by features."""
        features = self.features
        assert isinstance(features, csr_matrix)
        owners = np.repeat(self.whose, np.diff(features.indptr))
        return owners * features.shape[1] + features.indices

    def _sparse_slopes(
        self, residuals: NDArray[np.floating], constant: float
    ) -> NDArray[np.float64]:
        """``_slopes`` of sparse features: one sum over their entries for each class."""
        features = self.features
        assert isinstance(features, csr_matrix)
        owners, width = self.count, features.shape[1]
        entries = np.diff(features.indptr)
        found = np.empty((residuals.shape[1], owners, 1 + width))
        for each, own in zip(found, residuals.T, strict=True):
            each[:, 0] = constant * np.bincount(self.whose, own)
            values = features.data * np.repeat(own, entries)
            each[:, 1:] = np.bincount(self.places, values, owners * width).reshape(owners, width)
        return found.transpose(1, 2, 0)


class Direct:
    """One experiment whose clients are ``Owners``, and rows to score its models on.

    Args:
        experiment: of ``strategy=gradient_rounds``.
        held: hold back ``HELD`` of the owners and score on their rows; else on the test set.
    """

    def __init__(self, experiment: ValidatedRun, held: bool) -> None:
        people = experiment.population
        train = people.dataset.train
        rows = np.concatenate(people.shards)
        whose = np.repeat(np.arange(len(people.shards)), [len(r) for r in people.shards])
        flat = train.images.reshape(len(train), -1)
        flat = few_or_all(flat[rows])
        labels = train.labels[rows]
        self.classes = people.dataset.num_classes
        if not held:
            self.owners = Owners(flat, labels, whose)
            test = people.dataset.test
            theirs = people.dataset.test_owners
            if theirs is None:
                theirs = np.arange(len(test))  # nobody's: over owners is over examples
            self.test = Owners(test.images.reshape(len(test), -1), test.labels, theirs)
            return
        order = experiment_rng(experiment.config.seed, "validation owners").permutation(
            len(people.shards)
        )
        chosen = order[: round(HELD / (1 - TEST) * len(order))]
        back = np.isin(whose, chosen)
        self.owners = Owners(flat[~back], labels[~back], _numbered(whose[~back]))
        self.test = Owners(flat[back], labels[back], _numbered(whose[back]))

    def train(self, experiment: ValidatedRun) -> Scores:
        """Scores of the last model of ``experiment``, whose population must be this one's."""
        model = self.model(experiment)
        head = experiment.strategy.head  # type: ignore[attr-defined]
        test = self.test
        if head.radius is not None:
            test = test.centred(head.centre(model), head.radius)
        logits = test.features @ head.weights(model) + head.biases(model)
        return scored(logits, test.labels, test.whose)

    def model(self, experiment: ValidatedRun) -> NDArray[np.float32]:
        """The parameters (p,) after all rounds of ``experiment``."""
        strategy = experiment.strategy
        assert isinstance(strategy, GradientRounds)
        rng = experiment_rng(experiment.config.seed, "noise of a direct run")
        head = strategy.head
        settings = experiment.config.strategy
        model = (
            strategy.setup.initial_parameters() if experiment.start is None else experiment.start
        )
        owners = self.owners
        if strategy.centre_sum is not None:
            assert head.radius is not None
            deviation = strategy.centre_sum.deviation(strategy.setup.cohort_size)
            total = owners.centre() + rng.normal(0, deviation, head.features)
            steps = np.rint(total * strategy.centre_sum.steps).astype(np.int64)
            question = strategy.before_rounds()
            assert question is not None
            everybody = list(range(owners.count))
            outcome = Outcome(1, answered=everybody, total=steps, weight=owners.count)
            strategy.learn(question, outcome)
            owners = owners.centred(strategy.middle, head.radius)
        noise = strategy.protection.clip * strategy.protection.noise_on_a_sum()
        noise *= math.sqrt(strategy.setup.cohort_size / strategy.setup.budget.honest_clients)
        grid = strategy.protection.clip / CLIP_STEPS
        for number in range(1, strategy.setup.budget.rounds + 1):
            found = owners.gradients(
                head.weights(model),
                head.biases(model),
                settings,
                strategy.protection.clip,
            )
            total = head.joined(found[1:], found[0])
            total += rng.normal(0, 1, head.size) * noise
            steps = np.rint(total / grid).astype(np.int64)
            model = strategy.update(number, model, steps, owners.count)
        return model


def _numbered(owners: NDArray[np.int64]) -> NDArray[np.int64]:
    """``owners`` (N,) by numbers from 0 on."""
    return np.unique(owners, return_inverse=True)[1]


def few_or_all(features: NDArray[np.float32]) -> NDArray[np.float32] | csr_matrix:
    """``features`` (N, d), sparse where most of them are 0, as bins are."""
    if (features[:100] != 0).mean() < 0.1:
        return csr_matrix(features)
    return features


def scored(logits: NDArray, labels: NDArray[np.int64], whose: NDArray[np.int64]) -> Scores:
    """Accuracy, that over owners, and of two classes AUC."""
    found = {
        "accuracy": float((logits.argmax(axis=1) == labels).mean()),
        "accuracy_over_owners": over_owners(whose)(logits.astype(np.float32), labels),
    }
    if logits.shape[1] == 2:
        found["auc"] = area_under_curve(logits[:, 1] - logits[:, 0], labels)
    return found
