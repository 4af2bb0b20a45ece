"""The half of a strategy that an algorithm writes: what it asks, in which form, and what it learns.

``strategies.base.CohortStrategy`` drives it through Flower's rounds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from murmur.common import experiment_rng
from murmur.learning.codec import Codec, Integers
from murmur.learning.metrics import area_under_curve, evaluate_logits
from murmur.round.privacy_report import PrivacyReport
from murmur.round.setup import ServerSetup
from murmur.round.weights import Weights

Parameters = NDArray[np.float32]


class Algorithm(PrivacyReport):
    """Three methods that every algorithm has, and what may be overridden beside them.

    ``weighted``: whether clients count by their number of examples, rather than alike.
    ``extendable``: whether rounds can be added to a run; False where all share their noise.
    """

    weighted: bool = False
    extendable: bool = True

    def __init__(self, setup: ServerSetup) -> None:
        setup.budget.require_threat(self.algorithm, self.threats)
        self.setup = setup
        self.trainer = setup.trainer

    @abstractmethod
    def task(self, number: int, model: Parameters) -> tuple[dict[str, NDArray], dict[str, int]]:
        """Arrays and settings that the cohort needs in round ``number`` beside the model."""

    @abstractmethod
    def codec(self) -> Codec:
        """The form of this round's contributions; called after ``task``."""

    @abstractmethod
    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """The next global model from the sum of this round's contributions."""

    def before_rounds(self) -> tuple[str, int, dict[str, NDArray]] | None:
        """What clients are asked before the rounds: purpose, one of them, arrays; or None."""
        return None

    def cohort(self, number: int) -> NDArray[np.int64]:
        """The clients asked in round ``number``, ascending."""
        return self.setup.cohorts.cohort(number, self.setup.noise)

    def initial_parameters(self) -> Parameters:
        """The global model before the first round."""
        return self.trainer.initial(experiment_rng(self.setup.seed, "initial model"))

    def evaluate(self, model: Parameters) -> dict[str, float]:
        """Accuracy, loss and ``setup.metrics`` on the server's test set; of two classes AUC."""
        self.trainer.load(model)
        test = self.setup.test
        logits = self.trainer.logits(test.images)
        result = evaluate_logits(logits, test.labels)
        scores = {"accuracy": result.accuracy, "loss": result.loss}
        if self.trainer.num_classes == 2:
            scores["auc"] = area_under_curve(logits[:, 1] - logits[:, 0], test.labels)
        more = {name: score(logits, test.labels) for name, score in self.setup.metrics.items()}
        return scores | more

    def state(self) -> dict[str, NDArray]:
        """What a checkpoint must hold beside the model; override together with ``restore``."""
        return {}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Take up the state that ``state`` returned."""

    def forget(self) -> None:
        """The last round is over: drop what only further ones need, and nobody should read."""

    def noise_facts(self) -> dict[str, float]:
        """How much noise a round's sum holds and what leads over it, for planners; by name."""
        return {}

    def weights(self) -> Weights:
        """By their sizes, where the algorithm weighs clients and sizes are public; else alike."""
        sizes = self.setup.client_sizes
        if not self.weighted or sizes is None:
            return Weights(lambda client: 1)
        return Weights(sizes.__getitem__, min(sizes), max(sizes))
