"""Protected evaluation, the client: run the model that arrived, protect the result, send a row.

After "Horizontal Federated-Local Differential Privacy Inference Result Protection" (MindSpore
Federated documentation). The outputs go through softmax here, whatever the model exports, and
their mean over the client's records is the vector; the mechanism, its ε and how often it may be
asked follow from the client's own settings, never from the server. Each release is charged in
the ledger before inference; a record whose outputs are not finite counts as the uniform vector.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from clients.base import Client, ClientSetup, Event, LocalData, NoiseGenerator, Task, TaskError
from murmur.algorithms.protected_evaluation import CLEAN_TOTAL, ProtectedCounts, ResultSettings
from murmur.learning.codec import Codec, GridCodec
from murmur.privacy.budget import THREATS, UNITS
from murmur.privacy.mechanisms.grid import quantize_simplex
from murmur.privacy.record_choice import fixed_sample

PROTECTED, CLEAN = "evaluate", "evaluate without protection"


class EvaluationClient(Client):
    """Answers evaluation in rounds that are multiples of ``every``, with a row of its own.

    Of its two purposes the unprotected one is for simulations: it has no event, and devices refuse
    what has none. It stands beside the run's client half, and its releases are charged in the same
    ledger.

    Args:
        setup: tools, public data and budget, from the host.
        every: rounds from one evaluation to the next, by this client's own settings.
    """

    threats = THREATS  # its own budget stands beside the run's, and says whom it protects
    units = UNITS
    purposes: tuple[str, ...] = (PROTECTED, CLEAN)
    summed: bool = False

    def __init__(self, setup: ClientSetup, *, every: int) -> None:
        super().__init__(setup)
        self.every = every

    def event(self, task: Task) -> Event | None:
        """One row; nothing for the researcher of a simulation.

        TaskError in a round in which this client is not evaluated, and where ``check`` says so.
        """
        self.require_model(task)
        if task.round % self.every:
            raise TaskError(f"round={task.round}: this client is evaluated every {self.every}")
        self.check(task.client)
        return None if task.purpose == CLEAN else self.cost()

    def check(self, client: int) -> None:
        """TaskError where ``client`` cannot answer; by default it can."""

    @abstractmethod
    def cost(self) -> Event:
        """Price of one protected row, by this client's own noise."""

    @abstractmethod
    def apart(self) -> tuple[NDArray, NDArray]:
        """Two results of ``train`` of neighbours, as far apart as those can be, for audits."""


class ClusteringResultClient(EvaluationClient):
    """The mean of the model's probabilities over its records, protected by ``result``."""

    def __init__(self, setup: ClientSetup, *, every: int, result: Mapping[str, Any]) -> None:
        super().__init__(setup, every=every)
        self.result = ResultSettings.of(result, setup.client_sizes)
        self.classes = self.trainer.num_classes
        if self.result.is_on:
            self.protection = self.result.protection(self.classes)

    def codec(self, task: Task) -> Codec:
        """A protection's row; k grid steps where there is none."""
        return GridCodec(self.classes if task.purpose == CLEAN else self.protection.width)

    def check(self, client: int) -> None:
        """It must send anything at all, and have published the records that the noise needs."""
        if not self.result.is_on:
            raise TaskError("privacy=none: this client uploads no result without protection")
        if self.result.unit == "record" and self.size(client) < (self.result.records or 0):
            raise TaskError(
                f"records={self.result.records}: this client has published fewer, for which the "
                "noise would be too small"
            )

    def cost(self) -> Event:
        """One row."""
        return self.result.release(self.classes)

    def apart(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """All records of one class, and one of them, or all, of another."""
        one, other = np.eye(self.classes)[:2]
        if self.result.unit == "client" or self.result.records is None:
            return one, other
        return one, one + (other - one) / self.result.records

    def train(self, task: Task, data: LocalData) -> NDArray[np.float64]:
        """The mean of the probabilities (k,), to which each record adds its own and no more."""
        self.trainer.load(self.require_model(task))
        logits = self.trainer.logits(data.images[data.indices]).astype(np.float64)
        with np.errstate(invalid="ignore"):
            rows = softmax(logits, axis=1)
        # Where a record's outputs overflow, which a server can bring about, it says nothing.
        rows[~np.isfinite(rows).all(axis=1)] = 1 / self.classes
        return rows.mean(axis=0)

    def privatize(
        self, update: NDArray[np.float64], task: Task, noise: NoiseGenerator
    ) -> NDArray[np.int64]:
        """The protected row; ValueError if the vector is not a probability vector."""
        if task.purpose == CLEAN:
            return quantize_simplex(update, CLEAN_TOTAL)
        return self.protection.privatize(update, noise)


class CountsClient(EvaluationClient):
    """Right and wrong predictions on at most ``counts.examples`` of its examples, protected.

    Where a record is protected, which examples are counted is drawn in secret and in no order
    (``fixed_sample``), so that one that is exchanged moves one prediction. Where the client is,
    or nothing, a public sample does.
    """

    def __init__(self, setup: ClientSetup, *, every: int, counts: Mapping[str, Any]) -> None:
        super().__init__(setup, every=every)
        self.counts = ProtectedCounts.of(counts, setup.budget)
        self.summed = self.counts.is_summed

    def codec(self, task: Task) -> Codec:
        """Two counts."""
        return GridCodec(2) if task.purpose == CLEAN else self.counts.codec

    def cost(self) -> Event:
        """One release of both counts."""
        return self.counts.event()

    def apart(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All predictions right, and one of them, or all, wrong."""
        count = self.counts.examples
        wrong = count if self.counts.unit == "client" else 1
        return np.array([count, 0]), np.array([count - wrong, wrong])

    def answer(self, task: Task, data: LocalData, noise: NoiseGenerator) -> NDArray[np.int64]:
        """The noisy counts; where a record is protected ``noise`` draws the sample, too."""
        if task.purpose == CLEAN or self.counts.unit == "client":
            return self.privatize(self.train(task, data), task, noise)
        chosen = fixed_sample(data.contents(), self.counts.examples, noise)
        return self.privatize(self._counted(task, data, data.indices[chosen]), task, noise)

    def train(self, task: Task, data: LocalData) -> NDArray[np.int64]:
        """(right, wrong) on a public sample of the client's examples, afresh in each round."""
        order = self.rng(task, "evaluation sample").permutation(data.indices)
        return self._counted(task, data, order[: self.counts.examples])

    def _counted(self, task: Task, data: LocalData, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        self.trainer.load(self.require_model(task))
        found = self.trainer.logits(data.images[chosen]).argmax(axis=1)
        right = int((found == data.labels[chosen]).sum())
        return np.array([right, len(chosen) - right], np.int64)

    def privatize(
        self, update: NDArray[np.int64], task: Task, noise: NoiseGenerator
    ) -> NDArray[np.int64]:
        """The noisy counts."""
        return update if task.purpose == CLEAN else self.counts.privatize(update, noise)
