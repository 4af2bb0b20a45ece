"""PrivateKT, the server: pick public images, debias the clients' labels, distil them.

Qi, Wu, Wu, He, Huang, Xie: "Differentially private knowledge transfer for federated learning",
Nature Communications 14 (2023), s41467-023-38794-x. One round:

1. draw K images from the public pool D_p, P(i) ∝ exp(u_i), u_i the entropy of Θ on i   (eq. 4)
2. clients answer with randomised labels (``clients.privatekt``)
3. ŷ_i = (mean one-hot − (1−β)/C) / β over the answers                                  (eq. 3)
4. push (indices, ŷ) into a buffer of B rounds; fine-tune Θ on all of it → Θ'
5. draw M images ∝ exp(−entropy under Θ'); one epoch towards Θ' 's own predictions       (eq. 5)

Symbols: K = ``K``, B = ``buffer_rounds``, M = ``self_training.samples``, C = ``num_classes``.
Everything after step 2 is post-processing of randomised labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from learning.contribution import Integers, LabelCodec
from learning.seeding import experiment_rng
from learning.voting import cohort_for_plurality, draw, entropy, margin, plurality
from privacy.events import Event, NonPrivateEvent
from privacy.mechanisms import RandomizedResponse, project_simplex
from rounds.setup import ServerSetup
from strategies.algorithm import Parameters
from strategies.base import CohortStrategy


@dataclass(frozen=True)
class Distillation:
    """SGD on the server: ``passes`` over the data in batches of ``batch_size`` (None: all)."""

    passes: int
    learning_rate: float
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.passes < 0:
            raise ValueError(f"passes={self.passes}: must be at least 0")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate={self.learning_rate}: must be above 0")


class PrivateKT(CohortStrategy):
    """The server half. See ``conf/strategy/privatekt.yaml`` for every knob."""

    algorithm = "PrivateKT"
    threats = ("local", "secure_aggregation")
    claim = (
        "each round is ε-locally differentially private, and shuffled reports keep the whole run "
        "at that ε (Qi et al. 2023)"
    )
    difference = (
        "the labels of all rounds tell of the same data, so their losses add up; shuffling "
        "would need a non-colluding shuffler and unlinkable reports, and still composes."
    )

    def __init__(
        self,
        setup: ServerSetup,
        *,
        K: int,
        buffer_rounds: int,
        target: str,
        first_round: str,
        use_labels: bool,
        abstain_below: float,
        finetuning: Mapping[str, Any],
        self_training: Mapping[str, Any],
    ) -> None:
        super().__init__(setup)
        pool = len(setup.public)
        if not 1 <= K <= pool:
            raise ValueError(f"K={K}: must lie in 1..{pool}, the size of the public pool")
        if buffer_rounds < 1:
            raise ValueError(f"buffer_rounds={buffer_rounds}: must be at least 1")
        if target not in ("hard", "soft"):
            raise ValueError(f"target={target!r}: must be 'hard' or 'soft'")
        if first_round not in ("uniform", "entropy"):
            raise ValueError(f"first_round={first_round!r}: must be 'uniform' or 'entropy'")
        self_training = dict(self_training)
        samples = int(self_training.pop("samples"))
        if not 0 <= samples <= pool:
            raise ValueError(f"samples={samples}: must lie in 0..{pool}, the size of the pool")
        self.K, self.buffer_rounds, self.target = K, buffer_rounds, target
        self.uniform_start = first_round == "uniform"
        self.use_labels, self.abstain_below, self.samples = use_labels, abstain_below, samples
        self.finetuning = Distillation(**finetuning)
        self.self_training = Distillation(**self_training)
        self.classes = self.trainer.num_classes
        self.epsilon = setup.budget.per_round(lambda epsilon: self._labels_event(epsilon))
        self.indices = np.zeros(0, np.int64)
        self.buffer: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []

    def warnings(self) -> list[str]:
        """Whether the cohort is too small for the plurality of its noisy labels to be right."""
        if not self.setup.budget.is_private or not self.use_labels:
            return []
        needed = cohort_for_plurality(self._keep(), self.classes)
        if self.setup.cohort_size >= needed:
            return []
        return [
            f"clients_per_round={self.setup.cohort_size}: at ε={self.epsilon / self.K:.3g} per "
            f"label, plurality needs about {needed} clients (60% agreement, z=2.5); the labels "
            "will often be wrong. Raise epsilon, lower strategy.K, or ask more clients"
        ]

    # The round ------------------------------------------------------------------------------

    def task(self, number: int, model: Parameters) -> tuple[dict[str, NDArray], dict[str, int]]:
        """K distinct public images, drawn by the model's entropy on them (eq. 4)."""
        rng = self._rng("transfer data", number)
        weights = np.zeros(len(self.setup.public))
        if number > 1 or not self.uniform_start:
            self.trainer.load(model)
            weights = entropy(self.trainer.logits(self.setup.public))
        self.indices = draw(weights, self.K, rng)
        return {"indices": self.indices}, {}

    def codec(self) -> LabelCodec:
        """One label for each image asked for."""
        return LabelCodec(self.K, self.classes)

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """Debias, buffer, fine-tune, self-train (eq. 3 to 5)."""
        if self.use_labels:
            self._push(number, total, weight)
        self.trainer.load(model)
        if self.buffer:
            indices = np.concatenate([indices for indices, _ in self.buffer])
            targets = np.concatenate([targets for _, targets in self.buffer])
            self._distil(self.finetuning, indices, targets, self._rng("fine-tuning", number))
        if self.samples and self.self_training.passes:
            rng = self._rng("self-training", number)
            logits = self.trainer.logits(self.setup.public)
            chosen = draw(-entropy(logits), self.samples, rng)
            targets = np.exp(log_softmax(logits[chosen], axis=1)).astype(np.float32)
            self._distil(self.self_training, chosen, targets, rng)
        return self.trainer.parameters()

    def _push(self, number: int, total: Integers, weight: int) -> None:
        targets = self.estimate(total, weight)
        kept = margin(total) >= self.abstain_below
        if self.target == "hard":
            targets = plurality(targets, self._rng("ties", number))
        self.buffer.append((self.indices[kept], targets[kept].astype(np.float32)))
        del self.buffer[: -self.buffer_rounds]

    def estimate(self, total: Integers, weight: int) -> NDArray[np.float64]:
        """ŷ (K, C) of eq. 3, projected onto the simplex where targets are soft."""
        mean = total / weight
        if self.setup.budget.is_private:
            keep = self._keep()
            mean = (mean - (1 - keep) / self.classes) / keep
        return project_simplex(mean) if self.target == "soft" else mean

    def _distil(
        self,
        how: Distillation,
        indices: NDArray[np.int64],
        targets: NDArray[np.float32],
        rng: np.random.Generator,
    ) -> None:
        if len(indices) and how.passes:
            self.trainer.train(
                self.setup.public[indices],
                targets,
                rng=rng,
                epochs=how.passes,
                batch_size=how.batch_size or len(indices),
                lr=how.learning_rate,
                soft_targets=True,
            )

    # Privacy --------------------------------------------------------------------------------

    def release_event(self) -> Event:
        """K labels at ε/K each, or nothing private at all."""
        return self._labels_event(self.epsilon)

    def claimed_epsilon(self) -> tuple[float | None, float | None]:
        """ε for a round, and the same ε for the run."""
        return self.epsilon, self.epsilon

    def _keep(self) -> float:
        return RandomizedResponse(self.epsilon / self.K, self.classes).keep

    def _labels_event(self, epsilon: float) -> Event:
        if not self.setup.budget.is_private:
            return NonPrivateEvent()
        return RandomizedResponse(epsilon / self.K, self.classes).release(self.K)

    # Checkpoint -----------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray]:
        """The knowledge buffer."""
        parts: dict[str, NDArray] = {}
        for place, (indices, targets) in enumerate(self.buffer):
            parts[f"buffer.{place}.indices"] = indices
            parts[f"buffer.{place}.targets"] = targets
        return parts

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The knowledge buffer."""
        self.buffer = [
            (state[f"buffer.{place}.indices"], state[f"buffer.{place}.targets"])
            for place in range(len(state) // 2)
        ]

    def _rng(self, purpose: str, number: int) -> np.random.Generator:
        return experiment_rng(self.setup.seed, purpose, number)
