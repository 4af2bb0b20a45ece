"""The teachers of KD-DPFL: one model or many on a large client's data, and what they say.

* ``dpsgd_teacher``: DP-SGD (Abadi et al., CCS 2016); its labels are post-processing.
* ``pate``: one teacher for each shard of the data; a record moves one vote (Papernot et al., ICLR
  2017 and 2018). Noise on the histogram of each large client's votes.
* ``rr``: one teacher without noise, each label by randomised response.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from murmur.common import require_count
from murmur.learning.codec import Codec, GridCodec, LabelCodec, WeightCodec
from murmur.learning.data.examples import LocalData
from murmur.learning.training.dpsgd import DpSgd
from murmur.learning.training.trainer import Trainer
from murmur.papers.kd_dpfl.labelling import Labelling
from murmur.privacy.noise import NoiseGenerator


class Teacher:
    """Labels public images after training from the trainer's present parameters.

    ``clipping_norm``, ``learning_rate``: of DP-SGD; without noise the same rate and epochs, in
    batches of ``batch_size``. ``soft``: whether a DP-SGD teacher says probabilities, not labels.
    """

    def __init__(
        self,
        trainer: Trainer,
        labelling: Labelling,
        *,
        clipping_norm: float,
        learning_rate: float,
        batch_size: int,
        soft: bool,
    ) -> None:
        require_count("teacher.batch_size", batch_size)
        self.trainer, self.labelling, self.batch_size = trainer, labelling, batch_size
        self.soft = soft and labelling.mechanism == "dpsgd_teacher"
        self.settings = DpSgd(labelling.schedule.lot_size, clipping_norm, learning_rate)

    def codec(self) -> Codec:
        """The form of q labels, of q·C probabilities, or of q·C counts of votes."""
        queries, classes = self.labelling.queries, self.labelling.classes
        if self.soft:
            return WeightCodec(queries * classes)
        if self.labelling.mechanism == "pate":
            return GridCodec(queries * classes)
        return LabelCodec(queries, classes)

    def labels(
        self, data: LocalData, images: NDArray[np.float32], rng: np.random.Generator
    ) -> NDArray:
        """What the teachers say of ``images``, without protection, in the codec's form."""
        if self.labelling.mechanism == "pate":
            return self._votes(data, images, rng).ravel()
        self._train(data.indices, data, rng)
        return self._said(images)

    def private_labels(
        self,
        data: LocalData,
        images: NDArray[np.float32],
        rng: np.random.Generator,
        epsilon: float,
        delta: float,
        noise: NoiseGenerator,
    ) -> NDArray:
        """The same, such that all of it is (ε, δ)-differentially private for a record."""
        labelling = self.labelling
        if labelling.mechanism == "dpsgd_teacher":
            self._train_privately(data, epsilon, delta, noise)
            return self._said(images)
        if labelling.mechanism == "pate":
            votes = self._votes(data, images, rng)
            return labelling.votes(epsilon, delta).privatize(votes, noise).ravel()
        labels = self.labels(data, images, rng)
        return labelling.randomiser(epsilon, delta).privatize(labels, noise)

    def _train_privately(
        self, data: LocalData, epsilon: float, delta: float, noise: NoiseGenerator
    ) -> None:
        schedule = self.labelling.schedule
        mechanism = schedule.mechanism(epsilon, delta, len(data))
        self.settings.train(
            self.trainer,
            data.images,
            data.labels,
            indices=data.indices,
            steps=schedule.steps(len(data)),
            sample=lambda count: mechanism.sample(count, noise),
            perturb=lambda total: mechanism.perturb(total, noise),
        )

    def _train(self, indices: NDArray[np.int64], data: LocalData, rng: np.random.Generator) -> None:
        self.trainer.train(
            data.images,
            data.labels,
            indices=indices,
            rng=rng,
            epochs=self.labelling.schedule.epochs,
            batch_size=self.batch_size,
            lr=self.settings.learning_rate,
        )

    def _votes(
        self, data: LocalData, images: NDArray[np.float32], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Histogram (q, C) of the teachers' labels."""
        votes = np.zeros((self.labelling.queries, self.labelling.classes), np.int64)
        rows = np.arange(len(images))
        for shard in self._shards(data, rng):
            self._train(shard, data, rng)
            votes[rows, self.trainer.logits(images).argmax(axis=1)] += 1
        return votes

    def _shards(self, data: LocalData, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Disjoint shares of the data, each with the model back where it started."""
        start = self.trainer.parameters()
        shards = np.array_split(rng.permutation(data.indices), self.labelling.teachers)
        for shard in shards:
            if len(shard):
                self.trainer.load(start)
                yield shard

    def _said(self, images: NDArray[np.float32]) -> NDArray:
        logits = self.trainer.logits(images)
        if self.soft:
            said = softmax(logits, axis=1)
            return np.nan_to_num(said, nan=1 / said.shape[1]).astype(np.float32).ravel()
        return logits.argmax(axis=1).astype(np.uint8)
