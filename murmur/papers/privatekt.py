"""PrivateKT: labels of public images as answers, and the server's model that learns from them.

Qi, Wu, Wu, He, Huang, Xie: "Differentially private knowledge transfer for federated learning",
Nature Communications 14 (2023), s41467-023-38794-x. Clients label K public images; each label is
randomised and costs ε/K (eq. 2 and 6, ``murmur.privacy.mechanisms.RandomizedResponse``), the server
removes the bias (eq. 3, its ``debias``). Two algorithms share this file:

* ``strategy=privatekt`` answers with ``SharedLabels`` (the paper: all clients label the same
  images) or ``DisjointLabels`` (every client has images of its own; few labels each, so that each
  is kept with a useful probability). Both hold against whoever reads messages.
* ``strategy=votes`` answers with ``Votes``: one-hot rows plus a share of discrete Gaussian noise,
  for sums. Not in the paper.

Whatever the answers, a ``Student`` draws the images by the entropy of its model (eq. 4), keeps what
was said in a buffer, is fine-tuned on it, and trains itself further (eq. 5). All of that is
post-processing. Symbols: K = labels of one client, C = ``classes``, n = clients, β = ``keep``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import log_softmax, softmax

from murmur.common import experiment_rng
from murmur.learning import codec as forms
from murmur.learning.codec import Codec, Integers
from murmur.learning.linear_model import centred, require_linear, ridge, to_parameters, weights_of
from murmur.learning.public_labels import LabelSpreading, draw, entropy, margin, plurality
from murmur.learning.training.trainer import Trainer
from murmur.privacy.budget import Budget
from murmur.privacy.events import Event, Hiding, NonPrivateEvent
from murmur.privacy.mechanisms.clipping import project_simplex
from murmur.privacy.mechanisms.distributed_gaussian import DistributedGaussian, NoNoise, SharedNoise
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse
from murmur.privacy.noise import NoiseGenerator
from murmur.settings import Count, Positive, Share, settings

AGREEMENT = 0.5  # the share of clients' labels that are taken to be right before noise
ABSTAINED = -1  # a label that is no vote
SHARPNESS = 5.0  # of a ridge regression's scores, whose targets are 1 apart, as log-odds


# Answers: what one client releases, its price, and what a sum of answers says -------------------
#
# Each way to answer has a ``codec``, the form in which answers travel, an ``event`` and a way to
# ``privatize``. Its ``evidence``, ``counts`` and ``estimate`` read a ``total``, the sum of the
# answers of ``weight`` clients, and are post-processing. Rows are images that were asked about: K,
# or K·n where every client has its own.


@dataclass(frozen=True)
class LabelQuery:
    """What a client is asked to label, and what its answer may cost.

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
        self.codec: Codec = forms.LabelCodec(query.count, query.classes)
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

    def lead(self, clients: float, agreement: float = 0.6) -> float:
        """How far the right class of an image leads another, in standard errors of the noise.

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
        reach = self.noise.reach
        self.steps = round(1 / self.noise.grid)  # of a vote
        size = query.count * query.classes
        self.codec = forms.GridCodec(size, self.noise.grid, self.steps + reach, reach)

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

    def lead(self, clients: float, agreement: float = 0.6) -> float:
        """As of ``SharedLabels``; both counts hold Gaussian noise."""
        sigma = self.noise.deviation(clients)
        if sigma == 0:
            return math.inf
        votes = clients * (agreement - (1 - agreement) / (self.query.classes - 1))
        return votes / (math.sqrt(2) * sigma)

    def evidence(self, total: Integers, weight: int) -> NDArray[np.float64]:
        """As of ``SharedLabels``, by a Gaussian law around votes.

        Their lead for the right class is estimated from all.
        Where the votes vary no more than noise does, the lead is 0 and nothing is said.
        """
        classes = self.query.classes
        votes = self.counts(total)
        votes = votes - votes.mean(axis=1, keepdims=True)
        variance = self.noise.deviation(weight) ** 2 + weight / classes
        surplus = float((votes**2).sum(axis=1).mean()) - (classes - 1) * variance
        lead = math.sqrt(max(0.0, surplus * classes / (classes - 1)))
        return votes * (lead / variance)


Answers = SharedLabels | Votes


def way_of(answers: str) -> type[SharedLabels]:
    """The way that ``strategy.answers`` of ``strategy=privatekt`` names.

    ValueError for another one; that for ``votes`` names the strategy that has them.
    """
    ways = {"paper": SharedLabels, "disjoint": DisjointLabels}
    if answers == "votes":
        raise ValueError("answers=votes: is an algorithm of its own now; set strategy=votes")
    if answers not in ways:
        raise ValueError(f"answers={answers}: must be one of {', '.join(ways)}")
    return ways[answers]


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


@dataclass(frozen=True)
class OwnLabelCodec(Codec):
    """Labels of images that each client has to itself. See ``Codec``.

    One client sends ``count`` cells, image · ``categories`` + label; summed they are a histogram
    (clients · count, categories) in which every image has one label at most.

    Attributes:
        count: labels of one client.
        clients: of the cohort.
        categories: C.
    """

    count: int
    clients: int
    categories: int

    @property
    def shape(self) -> tuple[int, int]:
        """(clients · count, categories)."""
        return self.clients * self.count, self.categories

    @property
    def packed_bytes(self) -> int:
        """Four for each cell."""
        return 4 * self.count

    def pack(self, release: NDArray) -> NDArray[np.int32]:
        """Cells (count,) as int32."""
        return np.ascontiguousarray(release, dtype=np.int32)

    def check(self, packed: NDArray) -> None:
        """MalformedError unless all cells are of one client's images."""
        forms.require_array(packed, np.int32, (self.count,))
        images = packed.astype(np.int64) // self.categories
        first = images[0] - images[0] % self.count
        if packed.min() < 0 or not np.array_equal(images, first + np.arange(self.count)):
            raise forms.MalformedError("cells are not those of one client's images")
        if images[-1] >= self.shape[0]:
            raise forms.MalformedError(f"image {images[-1]} was not asked about")

    def add_to(self, total: Integers, packed: NDArray, weight: int) -> None:
        """``weight`` to each of one client's cells."""
        self.check(packed)
        total[packed // self.categories, packed % self.categories] += weight

    def check_total(self, total: NDArray, weight: int) -> Integers:
        """MalformedError unless images have one label at most, and clients ``count`` of them."""
        forms.require_array(total, np.int64, self.shape)
        rows = total.sum(axis=1)
        if total.min() < 0 or rows.max() > 1 or rows.sum() != weight * self.count:
            raise forms.MalformedError(f"not the labels of {weight} clients")
        return total

    @property
    def capacity(self) -> int:
        """Each client counts once."""
        return self.clients


# The client's own labels ------------------------------------------------------------------------


@settings
class Labeller:
    """Labels public images by the client's model; ``learner="ridge"`` trains it in closed form.

    Attributes:
        learner: ``sgd``: the caller trains; or ``ridge``, for linear models.
        penalty: of ``murmur.learning.linear_model.ridge``.
        components: of the same; None: all features.
    """

    learner: Literal["sgd", "ridge"]
    penalty: float
    components: int | None

    @property
    def is_closed_form(self) -> bool:
        """Whether nothing is trained by steps."""
        return self.learner == "ridge"

    def fit(
        self,
        trainer: Trainer,
        start: NDArray[np.float32],
        rows: NDArray[np.float32],
        labels: NDArray[np.int64],
    ) -> NDArray[np.float32]:
        """Parameters (d,): ``start`` plus a ridge regression of what it leaves unexplained.

        Args:
            trainer: whose model is linear.
            start: (d,).
            rows: the client's examples, (n, features).
            labels: their classes, (n,).
        """
        weights = weights_of(trainer, start)
        wanted = centred(labels, trainer.num_classes) - rows @ weights
        return to_parameters(weights + ridge(rows, wanted, self.penalty, self.components))

    def labels(
        self, trainer: Trainer, images: NDArray[np.float32], abstain: float
    ) -> NDArray[np.int64]:
        """Labels (K,) of ``images`` under the trainer's present model; not private yet.

        ``abstain``: the share of the images, the least sure ones, that get ``ABSTAINED`` for one.
        """
        logits = trainer.logits(images)
        labels = logits.argmax(axis=1).astype(np.int64)
        withheld = int(abstain * len(labels))
        if withheld:
            ordered = np.sort(logits, axis=1)
            lead = ordered[:, -1] - ordered[:, -2]
            labels[np.argsort(lead, kind="stable")[:withheld]] = ABSTAINED
        return labels


# The server's model -----------------------------------------------------------------------------


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
    temperature: Share = 0.5

    def teach(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the model's own outputs (M, C) become as targets."""
        if self.targets == "hard":
            return np.eye(logits.shape[1], dtype=np.float32)[logits.argmax(axis=1)]
        if self.targets == "sharpened":
            logits = logits / self.temperature
        return np.exp(log_softmax(logits, axis=1)).astype(np.float32)


@settings
class Learning:
    """How a ``Student`` learns; both algorithms have these knobs.

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


class Student:
    """The server's model and its knowledge buffer, over an unlabelled ``pool`` (P, C, H, W).

    A round is ``draw``, then ``hear`` once the answers are there, then ``learn``. Everything here
    is post-processing of protected answers.

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

    def hear(
        self, number: int, images: NDArray[np.int64], answers: Answers, total: Integers, weight: int
    ) -> None:
        """Buffer what the answers about ``images`` say: targets, or the evidence for them.

        Args:
            number: the round.
            images: which of the pool each row of the answers is about.
            answers: the way in which they were given.
            total: their sum.
            weight: how many clients answered.
        """
        if self.learning.target == "posterior":
            values = answers.evidence(total, weight)
            answered = np.any(values != 0, axis=1)
        else:
            lead = margin(np.maximum(answers.counts(total), 0))
            answered = lead >= self.learning.abstain_below
            values = answers.estimate(total, weight)
            if self.learning.target == "soft":
                values = project_simplex(values)
            else:
                values = plurality(values, self._rng("ties", number))
        if answered.any():  # noise may drown all of it
            self.buffer.append((images[answered], values[answered].astype(np.float32)))
        del self.buffer[: -self.learning.buffer_rounds]

    def lead(self, answers: Answers, clients: int, images: int) -> float:
        """How far the right class leads, beside the largest of the noises on all C classes.

        Of C Gaussian noises the largest is about σ√(2 ln C). SGD learns each image as its answers
        decide it, alone. A ridge model learns what a class looks like from the answers about all of
        its images, which add up.

        Args:
            answers: the way in which they are given.
            clients: who answer in a round.
            images: that are asked about in a round.
        """
        classes = answers.query.classes
        alone = answers.lead(clients) / math.sqrt(math.log(classes))
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
