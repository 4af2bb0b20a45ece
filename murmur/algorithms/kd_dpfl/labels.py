"""KD-DPFL: how large clients label the public set, what that costs, and noise on whole models.

Tan et al., Computer Science 51(6A), 2024. The pseudo-labels are made private in one of three ways:

* ``dpsgd_teacher``: one teacher by DP-SGD (Abadi et al., CCS 2016); its labels are post-processing.
* ``pate``: one teacher for each shard of the data (Papernot et al., ICLR 2017 and 2018). Noise on
  the histogram of each large client's votes. A record's shard follows from its own content
  (``murmur.privacy.record_choice.keyed_shards``), and each teacher has a random stream of its own,
  so a record that is nulled or left out moves one vote of each image, in whatever order the records
  are; one that is exchanged moves two at most.
* ``rr``: one teacher without noise, each label by randomised response.

``NoisyModel`` is NbAFL's way to protect an upload (Wei et al., IEEE TIFS 15, 2020), one of the two
that general clients have. The client adds the noise, the server states it, the planner prints it:
all three ask the same objects. Symbols: q = ``count``, C = ``classes``, ε = a client's own.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from murmur.algorithms.dpsgd import Lots, train_privately
from murmur.format import format_number
from murmur.learning.codec import Codec, GridCodec, LabelCodec, WeightCodec
from murmur.learning.data.examples import LocalData
from murmur.learning.training.dpsgd import ClippingNorm, DpSgd
from murmur.learning.training.trainer import Trainer
from murmur.privacy import events
from murmur.privacy.accounting.calibrate import label_epsilon, least_noise
from murmur.privacy.events import Adjacency, Event, Unit
from murmur.privacy.mechanisms.clipping import CLIP_STEPS, clip_l2, truncate
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.mechanisms.noisy_votes import NoisyVotes
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse
from murmur.privacy.mechanisms.sampled_gaussian import LotSchedule
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.record_choice import keyed_shards
from murmur.settings import Count, Norm, Positive, settings

MIN_TEACHERS = 50
TEACHER = "teacher"
"""The purpose of a teacher's stream; those of PATE have their numbers after it."""

Streams = Callable[[str], np.random.Generator]
_Teacher = tuple[NDArray[np.int64], np.random.Generator]
_SENSITIVITY = 2.0 * CLIP_STEPS  # of a clipped model, in grid steps


@settings
class Labelling:
    """How pseudo-labels are made and protected; ``mechanism`` none protects nothing.

    Attributes:
        mechanism: ``dpsgd_teacher``, ``pate``, ``rr`` or ``none``; see the head of this file.
        queries: public images that get a label; None: all.
        epochs: of every teacher, in one label stage.
        lot_size: expected examples in a step of a teacher's DP-SGD.
        noise: on the votes of PATE, ``gaussian`` or ``laplace``.
        teachers: of PATE, so many per client.
        allow_few: let fewer than 50, over all clients, vote.
        classes: C; known from ``over`` on, like the pool behind ``queries``.
        unit: whose data the noise protects, a record or the whole client; known like ``classes``.
    """

    mechanism: Literal["dpsgd_teacher", "pate", "rr", "none"]
    queries: Count | None
    epochs: Count
    lot_size: Count
    noise: Literal["gaussian", "laplace"] = "gaussian"
    teachers: Count = 50
    allow_few: bool = False
    classes: int = 0
    unit: Unit = Unit.RECORD

    def over(self, pool: int, classes: int, clients: int, unit: Unit = Unit.RECORD) -> "Labelling":
        """A copy for a public set of ``pool`` images.

        Args:
            pool: size of the public set.
            classes: C.
            clients: how many large clients label.
            unit: whose data the noise must protect.

        Raises:
            ValueError: there are too few images, or too few teachers; or PATE is to protect a
                client, whose records every teacher has seen.
        """
        if self.queries is None:
            queries = pool
        else:
            queries = self.queries
        if not 1 <= queries <= pool:
            raise ValueError(
                f"labelling.queries={queries}: must lie in 1..{pool}, the size of the public pool"
            )
        total = self.teachers * clients
        if self.mechanism == "pate" and total < MIN_TEACHERS and not self.allow_few:
            raise ValueError(
                f"labelling.teachers={self.teachers}: with {clients} large clients only "
                f"{total} teachers vote, too few to be heard over the noise (at least "
                f"{MIN_TEACHERS}); raise it, or set labelling.allow_few=true"
            )
        if self.mechanism == "pate" and unit is Unit.CLIENT:
            raise ValueError(
                "labelling.mechanism='pate': protects a record; set privacy.unit=record, or "
                "dpsgd_teacher or rr"
            )
        return replace(self, queries=queries, classes=classes, unit=unit)

    @property
    def count(self) -> int:
        """q: how many images get a label."""
        assert self.queries is not None, "known from ``over`` on"
        return self.queries

    @property
    def schedule(self) -> LotSchedule:
        """The lots of a teacher's DP-SGD."""
        return Lots(self.epochs, self.lot_size).schedule(unit=self.unit)

    def votes(self, epsilon: float, delta: float) -> NoisyVotes:
        """The noise on a client's histogram of votes: all q rows cost (``epsilon``, ``delta``)."""
        return _votes(self.noise, epsilon, delta, self.count)

    def randomiser(self, epsilon: float, delta: float) -> RandomizedResponse:
        """The randomiser of each label: all q tell of the same data, so their losses add up.

        The ε of one label is the largest with which all q cost (``epsilon``, ``delta``) together,
        as the accountant proves it.
        """
        each = _label_epsilon(epsilon, delta, self.classes, self.count)
        return RandomizedResponse(each, self.classes)

    def event(self, epsilon: float, delta: float, size: int) -> Event:
        """All that a client with ``size`` examples releases in the label stage.

        A DP-SGD teacher and PATE protect a record; a randomised label protects the whole client.

        Args:
            epsilon: the client's ε_label; infinite: nothing is protected.
            delta: δ.
            size: public; sets the sampling rate of a DP-SGD teacher, and is not read otherwise.
        """
        if self.mechanism == "none" or math.isinf(epsilon):
            return events.NonPrivateEvent()
        if self.mechanism == "dpsgd_teacher":
            return self.schedule.event(epsilon, delta, size)
        if self.mechanism == "pate":
            # Without a record the vote of the one teacher that saw it moves, and no other.
            votes = self.votes(epsilon, delta).event()
            return events.Release(votes, Unit.RECORD, Adjacency.REPLACE_SPECIAL)
        return self.randomiser(epsilon, delta).release(self.count)

    def describe(self, epsilon: float, delta: float, size: int) -> str:
        """The mechanism and its noise, in a few words."""
        if self.mechanism == "none" or math.isinf(epsilon):
            return "labels without noise"
        if self.mechanism == "dpsgd_teacher":
            return f"teacher by {self.schedule.describe(epsilon, delta, size)}"
        if self.mechanism == "pate":
            scale = self.votes(epsilon, delta).scale
            return f"PATE, {self.noise} noise of {scale:.3g} votes, {self.count} queries"
        each = self.randomiser(epsilon, delta).epsilon
        return f"randomised response at ε={format_number(each)} for each of {self.count} labels"

    def codec(self, soft: bool) -> Codec:
        """The form of q labels, of q·C probabilities if ``soft``, or of q·C counts of votes."""
        if self.mechanism == "pate":
            return GridCodec(self.count * self.classes)
        if self.mechanism == "dpsgd_teacher" and soft:
            return WeightCodec(self.count * self.classes)
        return LabelCodec(self.count, self.classes)


@lru_cache(maxsize=256)
def _votes(noise: str, epsilon: float, delta: float, queries: int) -> NoisyVotes:
    return NoisyVotes.calibrated(noise, epsilon, delta, queries)


@lru_cache(maxsize=256)
def _label_epsilon(epsilon: float, delta: float, classes: int, queries: int) -> float:
    return label_epsilon(epsilon, delta, classes, queries)


@settings
class TeacherTraining:
    """How teachers train.

    Attributes:
        clipping_norm: of one example's gradient, in a DP-SGD teacher.
        learning_rate: of every teacher.
        batch_size: of those that train without noise.
    """

    clipping_norm: ClippingNorm
    learning_rate: Positive
    batch_size: Count


class Teacher:
    """Labels public images after training from the trainer's present parameters.

    The trainer's parameters are those of a teacher afterwards; nothing else is kept.

    Attributes:
        trainer: whose model it trains.
        labelling: how labels are protected.
        training: how teachers train.
        soft: whether a DP-SGD teacher says probabilities, not labels; False of all other teachers.
    """

    def __init__(
        self, trainer: Trainer, labelling: Labelling, training: TeacherTraining, soft: bool
    ) -> None:
        self.trainer = trainer
        self.labelling = labelling
        self.training = training
        self.soft = soft and labelling.mechanism == "dpsgd_teacher"

    def labels(
        self,
        data: LocalData,
        images: NDArray[np.float32],
        streams: Streams,
        epsilon: float,
        delta: float,
        size: int,
        noise: NoiseGenerator,
        key: bytes,
    ) -> NDArray:
        """The teachers' labels of ``images``, (ε, δ)-differentially private, in the codec's form.

        Args:
            data: the client's own examples.
            images: (q, C, H, W), public.
            streams: experiment streams, by name, which need no secrecy: they draw the batches, and
                without protection the shards of PATE.
            epsilon: ε_label; infinite: without protection.
            delta: δ.
            size: how many examples the client has by what is public. It sets a DP-SGD teacher's
                sampling rate, as in the charge, whatever ``data`` hold.
            noise: draws noise, and the lots of DP-SGD.
            key: of the client's records, secret; shards of PATE follow from it, which alone read
                it.

        Returns:
            Labels (q,), or for PATE counts of votes (q·C,), which noise may make negative, or
            probabilities (q·C,) if soft.
        """
        labelling = self.labelling
        private = math.isfinite(epsilon)
        if labelling.mechanism == "pate":
            if not private:
                return self._votes(data, images, self._open_teachers(data, streams)).ravel()
            votes = self._votes(data, images, self._keyed_teachers(data, streams, key))
            return labelling.votes(epsilon, delta).privatize(votes, noise).ravel()
        if not private or labelling.mechanism == "rr":
            self._train(data.indices, data, streams(TEACHER))
            said = self._answers(images)
            if private:
                said = labelling.randomiser(epsilon, delta).privatize(said, noise)
            return said
        train_privately(
            self.trainer,
            DpSgd(labelling.lot_size, self.training.clipping_norm, self.training.learning_rate),
            labelling.schedule,
            epsilon,
            delta,
            size,
            data,
            noise,
        )
        return self._answers(images)

    def _train(self, indices: NDArray[np.int64], data: LocalData, rng: np.random.Generator) -> None:
        self.trainer.train(
            data.images,
            data.labels,
            indices=indices,
            rng=rng,
            epochs=self.labelling.epochs,
            batch_size=self.training.batch_size,
            lr=self.training.learning_rate,
        )

    def _keyed_teachers(self, data: LocalData, streams: Streams, key: bytes) -> Iterator[_Teacher]:
        """Each teacher's rows and stream: nothing of them follows from the other teachers' rows.

        Null records, which have no numbers to learn from, are in no shard.
        """
        finite = np.array([np.isfinite(data.images[row]).all() for row in data.indices], bool)
        own = replace(data, indices=data.indices[finite])
        shards = keyed_shards(own.contents(), self.labelling.teachers, key)
        for number, shard in enumerate(shards):
            yield own.indices[shard], streams(f"{TEACHER} {number}")

    def _open_teachers(self, data: LocalData, streams: Streams) -> Iterator[_Teacher]:
        """Teachers without protection: equal shards, and one stream for all of them."""
        rng = streams(TEACHER)
        for shard in np.array_split(rng.permutation(data.indices), self.labelling.teachers):
            yield shard, rng

    def _votes(
        self, data: LocalData, images: NDArray[np.float32], teachers: Iterator[_Teacher]
    ) -> NDArray[np.int64]:
        """Histogram (q, C) of the teachers' labels; one without records does not vote."""
        votes = np.zeros((self.labelling.count, self.labelling.classes), np.int64)
        rows = np.arange(len(images))
        start = self.trainer.parameters()
        # Disjoint shares of the data, each with the model back where it started.
        for shard, rng in teachers:
            if len(shard):
                self.trainer.load(start)
                self._train(shard, data, rng)
                votes[rows, self.trainer.logits(images).argmax(axis=1)] += 1
        return votes

    def _answers(self, images: NDArray[np.float32]) -> NDArray:
        logits = self.trainer.logits(images)
        if not self.soft:
            return logits.argmax(axis=1).astype(np.uint8)
        shares = softmax(logits, axis=1)
        return np.nan_to_num(shares, nan=1 / shares.shape[1]).astype(np.float32).ravel()


@settings
class NoisyModel:
    """Releases of a model of norm at most ``clip`` C with noise on all of it, ``rounds`` times.

    The sensitivity is what can be proven of any local training: such a model becomes any other, 2C.
    So the noise protects a whole client as well as one record.

    Attributes:
        clip: C, L2 norm of the whole model.
        rounds: releases that keep the budget together.
    """

    clip: Norm
    rounds: Count

    def event(self, epsilon: float, delta: float, size: int) -> Event:
        """One release at the least noise that keeps all rounds within the budget.

        ``size`` is not read: the noise does not depend on how many examples a client has.
        """
        noise = events.DiscreteGaussianEvent(_sigma(epsilon, delta, self.rounds), _SENSITIVITY)
        return events.Release(noise, Unit.CLIENT, Adjacency.REPLACE_ONE)

    def describe(self, epsilon: float, delta: float, size: int) -> str:
        """The noise, in a few words."""
        multiplier = _sigma(epsilon, delta, self.rounds) / _SENSITIVITY
        return f"noise on the model, noise multiplier {multiplier:.3f}, {self.rounds} releases"

    def privatize(
        self, model: NDArray[Any], epsilon: float, delta: float, rng: NoiseGenerator
    ) -> NDArray[np.float64]:
        """``model`` (d,), clipped, with noise, on the grid C/2²⁰.

        Args:
            model: what training led to, of any length.
            epsilon: of all rounds together.
            delta: δ.
            rng: the noise stream.

        Raises:
            ValueError: the model is not finite.
        """
        steps = truncate(clip_l2(np.asarray(model, np.float64), self.clip), self.clip)
        noise = DiscreteGaussian(_sigma(epsilon, delta, self.rounds), _SENSITIVITY)
        noisy = noise.privatize_integers(steps, rng)
        return np.multiply(noisy, self.clip / CLIP_STEPS, dtype=np.float64)


@lru_cache(maxsize=256)
def _sigma(epsilon: float, delta: float, rounds: int) -> float:
    """Least σ in grid steps, a whole number."""
    from murmur.privacy.accounting import epsilon as epsilon_of

    def cost(multiplier: float) -> float:
        one = events.DiscreteGaussianEvent(multiplier * _SENSITIVITY, _SENSITIVITY)
        return epsilon_of(events.RepeatedEvent(one, rounds), delta).epsilon

    return float(math.ceil(least_noise(cost, epsilon, 1e-2, 1e5) * _SENSITIVITY))
