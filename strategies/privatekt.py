"""PrivateKT, the server: pick public images, debias the clients' labels, distil them.

Qi, Wu, Wu, He, Huang, Xie: "Differentially private knowledge transfer for federated learning",
Nature Communications 14 (2023), s41467-023-38794-x. One round:

1. draw K images from the public pool D_p, P(i) ∝ exp(u_i), u_i the entropy of Θ on i   (eq. 4)
2. clients answer with randomised labels (``clients.privatekt``), in one of three ways
   (``murmur.papers.privatekt.answers``); the paper's is ``answers=paper``
3. ŷ_i = (mean one-hot − (1−β)/C) / β over the answers                                  (eq. 3)
4. push (indices, ŷ) into a buffer of B rounds; fine-tune Θ on all of it → Θ'
5. draw M images ∝ exp(−entropy under Θ'); one epoch towards Θ' 's own predictions       (eq. 5)

Step 5 teaches only where its targets differ from what the training pass predicts. In the authors'
code they do because dropout is on in that pass: ``self_training.targets=soft``. Without dropout the
gradient is zero, and targets must be ``hard`` or ``sharpened``.

Symbols: K = ``K``, B = ``buffer_rounds``, M = ``self_training.samples``, C = ``num_classes``.
Everything after step 2 is post-processing of randomised labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.common import experiment_rng, require_count
from murmur.learning.codec import Codec, Integers
from murmur.learning.linear_model import require_linear, to_parameters
from murmur.learning.voting import cohort_for_plurality, draw, entropy, margin, plurality
from murmur.papers.privatekt.answers import LabelQuery, SharedLabels, Votes, way_of
from murmur.papers.privatekt.distillation import Distillation, SelfTraining
from murmur.papers.privatekt.ridge_learner import RidgeLearner, targets_of
from murmur.privacy.events import ComposedEvent, Event
from murmur.privacy.mechanisms import project_simplex
from murmur.round.setup import ServerSetup
from strategies.base import CohortStrategy, Parameters


class PrivateKT(CohortStrategy):
    """The server half. See ``conf/strategy/privatekt.yaml`` for every knob."""

    algorithm = "PrivateKT"

    def __init__(
        self,
        setup: ServerSetup,
        *,
        answers: str,
        K: int,
        buffer_rounds: int,
        target: str,
        sampling: str,
        first_round: str,
        use_labels: bool,
        abstain_below: float,
        learner: str,
        penalty: float,
        components: int | None,
        refits: int,
        finetuning: Mapping[str, Any],
        self_training: Mapping[str, Any],
        spreading: Mapping[str, Any] | None,
    ) -> None:
        self.threats = way_of(answers).threats
        super().__init__(setup)
        pool, asked = len(setup.public), setup.cohort_size if answers == "disjoint" else 1
        if not 1 <= K * asked <= pool:
            raise ValueError(
                f"K={K}: must lie in 1..{pool // asked}, the size of the public pool"
                + (" over that of the cohort" if asked > 1 else "")
            )
        require_count("buffer_rounds", buffer_rounds)
        if target not in ("hard", "soft", "posterior"):
            raise ValueError(f"target={target!r}: must be 'hard', 'soft' or 'posterior'")
        if answers == "disjoint" and target != "posterior":
            raise ValueError(f"target={target!r}: answers=disjoint needs 'posterior'")
        for name, value in (("sampling", sampling), ("first_round", first_round)):
            if value not in ("uniform", "entropy"):
                raise ValueError(f"{name}={value!r}: must be 'uniform' or 'entropy'")
        if learner not in ("sgd", "ridge"):
            raise ValueError(f"learner={learner!r}: must be 'sgd' or 'ridge'")
        self.self_training = SelfTraining(**self_training)
        if not 0 <= self.self_training.samples <= pool:
            raise ValueError(
                f"samples={self.self_training.samples}: must lie in 0..{pool}, the size of the pool"
            )
        idle = self.self_training.targets == "soft" and not self.trainer.has_dropout
        if self.self_training.samples and idle:
            raise ValueError(
                "targets='soft': self-training on a model's own soft predictions does nothing "
                "without dropout; set self_training.targets to hard or sharpened"
            )
        self.ridge = None
        if learner == "ridge":
            require_linear(self.trainer, "learner=ridge")
            self.ridge = RidgeLearner(
                setup.public,
                penalty=penalty,
                components=components,
                refits=refits,
                spreading=spreading,
            )
        elif spreading is not None or refits:
            raise ValueError("spreading and refits: need learner=ridge")
        self.K, self.buffer_rounds, self.target = K, buffer_rounds, target
        self.uniform_rounds = int(first_round == "uniform") if sampling == "entropy" else math.inf
        self.use_labels, self.abstain_below = use_labels, abstain_below
        self.finetuning = Distillation(**finetuning)
        self.classes, self.way = self.trainer.num_classes, answers
        self.answers = way_of(answers)(LabelQuery(setup.budget, K, self.classes, asked))
        self.indices = np.zeros(0, np.int64)
        self.buffer: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []
        if answers == "paper":
            self.claim = (
                "each round is ε-locally differentially private, and shuffled reports keep the "
                "whole run at that ε (Qi et al. 2023)"
            )
            self.difference = (
                "the labels of all rounds tell of the same data, so their losses add up; shuffling "
                "would need a non-colluding shuffler and unlinkable reports, and still composes."
            )
        else:
            self.difference = "nothing is claimed beyond what is proven."

    @property
    def epsilon(self) -> float:
        """ε of one round of randomised labels; inf without protection."""
        mechanism = getattr(self.answers, "mechanism", None)
        return np.inf if mechanism is None else mechanism.epsilon * self.K

    def warnings(self) -> list[str]:
        """Whether the cohort is too small for the plurality of its noisy labels to be right."""
        private = self.setup.budget.is_private and self.use_labels
        if not private or self.way != "paper" or not isinstance(self.answers, SharedLabels):
            return []
        needed = cohort_for_plurality(self.answers.keep, self.classes)
        if self.setup.cohort_size >= needed:
            return []
        return [
            f"clients_per_round={self.setup.cohort_size}: at ε={self.epsilon / self.K:.3g} per "
            f"label, plurality needs about {needed} clients (60% agreement, z=2.5); the labels "
            "will often be wrong. Raise epsilon, lower strategy.K, or ask more clients"
        ]

    def noise_facts(self) -> dict[str, float]:
        """Labels of one client, and what the right class of an image leads by at 60% agreement."""
        facts = {"labels": float(self.K * self.setup.budget.releases)}
        if isinstance(self.answers, SharedLabels):
            facts["kept"] = self.answers.keep
        clients = 1 if self.way == "disjoint" else self.setup.cohort_size
        return facts | {"lead in standard errors": self.answers.lead(clients)}

    # The round ------------------------------------------------------------------------------

    def cohort(self, number: int) -> NDArray[np.int64]:
        """The clients asked in round ``number``; nobody where labels are not used."""
        return super().cohort(number) if self.use_labels else np.zeros(0, np.int64)

    def task(self, number: int, model: Parameters) -> tuple[dict[str, NDArray], dict[str, int]]:
        """K distinct public images, drawn by the model's entropy on them (eq. 4).

        ``disjoint``: K for each client, in an order in which none comes twice before all have.
        """
        pool = len(self.setup.public)
        if self.way == "disjoint":
            clients = self.cohort(number)
            order = self._rng("questions", 0).permutation(pool)
            start = (number - 1) * self.K * self.setup.cohort_size
            self.indices = order[(start + np.arange(self.K * self.setup.cohort_size)) % pool]
            rows = self.indices.reshape(-1, self.K)[: len(clients)]
            return {"indices": rows, "clients": clients}, {}
        rng = self._rng("transfer data", number)
        weights = np.zeros(pool)
        if number > self.uniform_rounds:
            self.trainer.load(model)
            weights = entropy(self.trainer.logits(self.setup.public))
        self.indices = draw(weights, self.K, rng)
        return {"indices": self.indices}, {}

    def codec(self) -> Codec:
        """That of the way to answer."""
        return self.answers.codec

    def update(self, number: int, model: Parameters, total: Integers, weight: int) -> Parameters:
        """Debias, buffer, fine-tune, self-train (eq. 3 to 5)."""
        if self.use_labels:
            self._push(number, total, weight)
        self.trainer.load(model)
        if self.buffer:
            indices = np.concatenate([indices for indices, _ in self.buffer])
            values = np.concatenate([values for _, values in self.buffer])
            posterior = self.target == "posterior"
            if self.ridge is not None:
                weights = self.ridge.fit(indices, values, posterior)
                self.trainer.load(to_parameters(self.trainer, weights))
            else:
                rng = self._rng("fine-tuning", number)
                wanted = targets_of(values) if posterior else values
                self._distil(self.finetuning, indices, wanted, rng)
        how = self.self_training
        if how.samples and how.passes:
            rng = self._rng("self-training", number)
            logits = self.trainer.logits(self.setup.public)
            chosen = draw(-entropy(logits), how.samples, rng)
            self._distil(how, chosen, how.teach(logits[chosen]), rng)
        return self.trainer.parameters()

    def _push(self, number: int, total: Integers, weight: int) -> None:
        """Keep what the round says: targets, or the evidence from which they follow."""
        answered = np.ones(len(self.indices), bool)
        if self.target == "posterior":
            values = self.answers.evidence(total, weight)
            answered = np.any(values != 0, axis=1)
        else:
            values = self.estimate(total, weight)
            answered = margin(np.maximum(self._counts(total), 0)) >= self.abstain_below
            if self.target == "hard":
                values = plurality(values, self._rng("ties", number))
        if answered.any():  # noise may drown all of it
            self.buffer.append((self.indices[answered], values[answered].astype(np.float32)))
        del self.buffer[: -self.buffer_rounds]

    def _counts(self, total: Integers) -> NDArray[np.float64]:
        if isinstance(self.answers, Votes):
            return self.answers.counts(total)
        return total.astype(np.float64)

    def estimate(self, total: Integers, weight: int) -> NDArray[np.float64]:
        """ŷ (K, C) of eq. 3, projected onto the simplex where targets are soft."""
        mean = self._counts(total) / weight
        if isinstance(self.answers, SharedLabels):
            keep = self.answers.keep
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
        """What one client's answer costs; nothing where nobody is asked."""
        return self.answers.event() if self.use_labels else ComposedEvent(())

    def claimed_epsilon(self) -> tuple[float | None, float | None]:
        """ε for a round, and the same ε for the run; nothing for ways that are not the paper's."""
        claimed = self.epsilon if self.use_labels else 0.0
        return (claimed, claimed) if self.way == "paper" else (None, None)

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
