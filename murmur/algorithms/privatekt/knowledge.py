"""The server's model and the buffer of answers that it learns from (eq. 4 and 5).

All of it is post-processing of protected answers. Symbols: K = labels of one client, C = classes,
B = ``buffer_rounds``, M = ``samples``.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import log_softmax, softmax

from murmur.algorithms.privatekt.answers import AnswerKind
from murmur.learning.codec import Integers
from murmur.learning.linear_model import require_linear, ridge, to_parameters
from murmur.learning.public_labels import LabelSpreading, draw, entropy, margin, plurality
from murmur.learning.training.trainer import Trainer
from murmur.privacy.mechanisms.clipping import project_simplex
from murmur.random import experiment_rng
from murmur.settings import Count, Fraction, Positive, settings

SHARPNESS = 5.0  # of a ridge regression's scores, whose targets are 1 apart, as log-odds


@settings
class Distillation:
    """SGD on the server, towards targets of public images.

    Attributes:
        passes: over the data, at least 0; 0: nothing is trained.
        learning_rate: above 0.
        batch_size: images of a step; None: all.
    """

    passes: Annotated[int, Field(ge=0)]
    learning_rate: Positive
    batch_size: Count | None = None


@settings
class SelfTraining(Distillation):
    """The server's model as its own teacher (eq. 5).

    Eq. 5 teaches only where its targets differ from what the training pass predicts. In the
    authors' code they do because dropout is on in that pass: ``soft``. Without dropout the gradient
    is zero, and targets must be ``hard`` or ``sharpened``.

    Attributes:
        samples: M, public images drawn in a round; 0: no self-training.
        targets: ``soft``, ``hard`` or ``sharpened``.
        temperature: of ``sharpened``, below 1.
    """

    samples: Annotated[int, Field(ge=0)] = 0
    targets: Literal["soft", "hard", "sharpened"] = "soft"
    temperature: Fraction = 0.5

    def teach(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Targets made of the model's own outputs (M, C)."""
        if self.targets == "hard":
            return np.eye(logits.shape[1], dtype=np.float32)[logits.argmax(axis=1)]
        if self.targets == "sharpened":
            logits = logits / self.temperature
        return np.exp(log_softmax(logits, axis=1)).astype(np.float32)


@settings
class Learning:
    """Settings of a ``KnowledgeBuffer``; both algorithms have them.

    Attributes:
        buffer_rounds: B, rounds of answers that are kept and learned from.
        target: what an image's answers become: ``hard`` (their plurality), ``soft`` (the estimate,
            on the simplex) or ``posterior`` (by the noise's law).
        sampling: how images are drawn in later rounds: ``entropy`` (eq. 4) or ``uniform``.
        first_round: how in round 1: ``uniform``, or ``entropy``, as ``sampling`` has it.
        abstain_below: images whose first class leads by fewer standard errors are dropped; not read
            with ``posterior``.
        learner: ``sgd``, or ``ridge`` in closed form, for linear models.
        penalty: of ridge regression.
        components: how many of the features it uses, the first ones; None: all.
        refits: how often posteriors are taken anew from the ridge model that they led to.
        spreading: settings of ``LabelSpreading`` after each ridge regression; None: none.
        finetuning: SGD on the buffer, with ``sgd``.
        self_training: what follows in each round.

    Raises:
        ValueError: ``spreading`` or ``refits`` without ridge.
    """

    buffer_rounds: Count
    target: Literal["hard", "soft", "posterior"]
    sampling: Literal["uniform", "entropy"]
    first_round: Literal["uniform", "entropy"]
    abstain_below: float
    learner: Literal["sgd", "ridge"]
    penalty: float
    components: int | None
    refits: Annotated[int, Field(ge=0)]
    spreading: Mapping[str, Any] | None
    finetuning: Distillation
    self_training: SelfTraining

    def __post_init__(self) -> None:
        if self.learner != "ridge" and (self.spreading is not None or self.refits):
            raise ValueError("spreading and refits: need learner=ridge")


class KnowledgeBuffer:
    """The server's model and its knowledge buffer, over an unlabelled ``pool`` (P, C, H, W).

    A round is ``draw``, then ``observe`` once the answers are there, then ``learn``. Everything
    here is post-processing of protected answers.

    Args:
        trainer: the process's one model.
        pool: public images.
        seed: of the experiment stream.
        learning: the knobs.

    Attributes:
        buffer: of the last rounds, the oldest first: images, and their targets or evidence.

    Raises:
        ValueError: settings do not suit the pool or the model.
    """

    def __init__(
        self, trainer: Trainer, pool: NDArray[np.float32], seed: int, learning: Learning
    ) -> None:
        how = learning.self_training
        if how.samples > len(pool):
            raise ValueError(
                f"samples={how.samples}: must lie in 0..{len(pool)}, the size of the pool"
            )
        if how.samples and how.targets == "soft" and not trainer.has_dropout:
            raise ValueError(
                "targets='soft': self-training on a model's own soft predictions does nothing "
                "without dropout; set self_training.targets to hard or sharpened"
            )
        if learning.learner == "ridge":
            require_linear(trainer, "learner=ridge")
        self.spreading: LabelSpreading | None = None
        if learning.spreading is not None:
            self.spreading = LabelSpreading(**learning.spreading)
        self.trainer = trainer
        self.pool = pool
        self.rows = pool.reshape(len(pool), -1)
        self.seed = seed
        self.learning = learning
        self.buffer: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []

    def draw(self, number: int, model: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """``count`` distinct images of round ``number``, P(i) ∝ exp(entropy of ``model`` on i)."""
        uncertainty = np.zeros(len(self.pool))
        uniform_rounds = int(self.learning.first_round == "uniform")
        if self.learning.sampling == "entropy" and number > uniform_rounds:
            self.trainer.load(model)
            uncertainty = entropy(self.trainer.logits(self.pool))
        return draw(uncertainty, count, self._rng("transfer data", number))

    def observe(
        self,
        number: int,
        images: NDArray[np.int64],
        answers: AnswerKind,
        total: Integers,
        weight: int,
    ) -> None:
        """Buffer what the answers about ``images`` say: targets, or the evidence for them.

        Args:
            number: the round.
            images: which of the pool each row of the answers is about.
            answers: the kind of answers.
            total: their sum.
            weight: how many clients answered.
        """
        if self.learning.target == "posterior":
            values = answers.evidence(total, weight)
            answered = np.any(values != 0, axis=1)
        else:
            margins = margin(np.maximum(answers.counts(total), 0))
            answered = margins >= self.learning.abstain_below
            values = answers.estimate(total, weight)
            if self.learning.target == "soft":
                values = project_simplex(values)
            else:
                values = plurality(values, self._rng("ties", number))
        if answered.any():  # noise may drown all of it
            self.buffer.append((images[answered], values[answered].astype(np.float32)))
        del self.buffer[: -self.learning.buffer_rounds]

    def margin_in_sigmas(self, answers: AnswerKind, clients: int, images: int) -> float:
        """Margin of the right class, relative to the largest of the noises on all C classes.

        Of C Gaussian noises the largest is about σ√(2 ln C). SGD learns each image as its answers
        decide it, alone. A ridge model learns what a class looks like from the answers about all of
        its images, which add up.

        Args:
            answers: the kind of answers.
            clients: who answer in a round.
            images: that are asked about in a round.
        """
        classes = answers.query.classes
        alone = answers.margin_in_sigmas(clients) / math.sqrt(math.log(classes))
        if self.learning.learner != "ridge":
            return alone
        kept = images * min(answers.query.budget.rounds, self.learning.buffer_rounds)
        return alone * math.sqrt(max(1.0, kept / classes))

    def learn(self, number: int, model: NDArray[np.float32]) -> NDArray[np.float32]:
        """The parameters (d,) after fine-tuning on the buffer and self-training (eq. 5).

        From ``model`` (d,) on; with ``ridge`` from the buffer alone, if there is anything in it.
        """
        self.trainer.load(model)
        if self.buffer:
            indices = np.concatenate([indices for indices, _ in self.buffer])
            values = np.concatenate([values for _, values in self.buffer])
            if self.learning.learner == "ridge":
                self.trainer.load(to_parameters(self._fit(indices, values)))
            else:
                rng = self._rng("fine-tuning", number)
                self._distil(self.learning.finetuning, indices, self._targets(values), rng)
        how = self.learning.self_training
        if how.samples and how.passes:
            rng = self._rng("self-training", number)
            logits = self.trainer.logits(self.pool)
            chosen = draw(-entropy(logits), how.samples, rng)
            self._distil(how, chosen, how.teach(logits[chosen]), rng)
        return self.trainer.parameters()

    def _targets(
        self, values: NDArray[np.float32], belief: NDArray[np.float64] | float = 0.0
    ) -> NDArray[np.float32]:
        """The buffer's targets; the posterior of its evidence and ``belief``, as logarithms."""
        if self.learning.target != "posterior":
            return values
        return softmax(values + belief, axis=1).astype(np.float32)

    def _fit(self, indices: NDArray[np.int64], values: NDArray[np.float32]) -> NDArray[np.float64]:
        """Ridge regression and label spreading, again from the posterior that they lead to."""
        seen = self.rows[indices]
        classes = values.shape[1]
        weights = np.zeros((self.rows.shape[1], classes))
        for _ in range(1 + self.learning.refits):
            belief = log_softmax(SHARPNESS * (seen @ weights), axis=1)
            wanted = (self._targets(values, belief) - 1 / classes).astype(np.float64)
            weights = ridge(seen, wanted, self.learning.penalty, self.learning.components)
            if self.spreading is not None:
                graph = self.spreading.graph(self.rows)
                weights = self.spreading.refine(graph, self.rows, self.rows @ weights)
        return weights

    def _distil(
        self,
        how: Distillation,
        indices: NDArray[np.int64],
        targets: NDArray[np.float32],
        rng: np.random.Generator,
    ) -> None:
        if len(indices) and how.passes:
            self.trainer.train(
                self.pool[indices],
                targets,
                rng=rng,
                epochs=how.passes,
                batch_size=how.batch_size or len(indices),
                lr=how.learning_rate,
                soft_targets=True,
            )

    def _rng(self, purpose: str, number: int) -> np.random.Generator:
        return experiment_rng(self.seed, purpose, number)

    def state(self) -> dict[str, NDArray]:
        """The buffer, for a checkpoint."""
        parts: dict[str, NDArray] = {}
        for place, (indices, targets) in enumerate(self.buffer):
            parts[f"buffer.{place}.indices"] = indices
            parts[f"buffer.{place}.targets"] = targets
        return parts

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """The inverse of ``state``; the buffer is replaced."""
        self.buffer = [
            (state[f"buffer.{place}.indices"], state[f"buffer.{place}.targets"])
            for place in range(len(state) // 2)
        ]
