"""Protected inference results: one client's probability vector, or its argmax, under local DP.

After "Horizontal Federated-Local Differential Privacy Inference Result Protection" (MindSpore
Federated documentation). Each protection is a frozen value whose ``privatize(vector, rng)`` gives
a row of integers that may leave the client, and whose ``event()`` says what that cost; ``decode``
is what the server reads out of rows.

Sensitivity: two probability vectors are at L1 distance 2 (the document says 1), so a vector that
may change altogether has Δ = 2 (``Unit.CLIENT``), and the mean of n records' vectors, of which one
record is replaced, has Δ = 2/n (``Unit.RECORD``). Noise is added to integers on a grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from murmur.common import require_positive, require_probability
from murmur.papers.protected_results.rows import Decoded, Protection, Rows
from murmur.privacy.events import ComposedEvent, Event
from murmur.privacy.mechanisms import (
    DiscreteLaplace,
    ExponentialMechanism,
    PermuteAndFlip,
    RandomizedResponse,
    quantize_simplex,
    quantized_simplex_sensitivity,
)
from murmur.privacy.mechanisms.discrete_laplace import laplace_scale
from murmur.privacy.mechanisms.uniform import uniform_below
from murmur.privacy.noise import NoiseGenerator

DOCUMENT_SENSITIVITY = 1.0  # what the document takes for Δ; the truth is 2
CLEAN_TOTAL = 1 << 20  # grid steps that make 1 where a simulation shows the clean vector
_LARGEST_TOTAL = 1 << 30  # rows travel as 32-bit integers


@dataclass(frozen=True)
class LaplaceResult(Protection):
    """The vector plus discrete Laplace noise on a grid of 1/``total``.

    Attributes:
        epsilon: ε of one release; with ``seed_compat``, what the document calls so.
        categories: k.
        change: Δ, the L1 sensitivity: 2 for a client, 2/n for a record of n.
        seed_compat: scale the noise to Δ = 1 as the document does. The event tells the truth.
    """

    epsilon: float
    categories: int
    change: float = 2.0
    seed_compat: bool = False

    def __post_init__(self) -> None:
        _check(self.epsilon, self.categories)
        if not 0 < self.change <= 2:
            raise ValueError(f"change={self.change}: must lie in (0, 2], the L1 sensitivity")
        if self.seed_compat and self.change != 2:
            raise ValueError(
                "seed_compat=true: reproduces the document, which protects clients; set unit=client"
            )
        if self.total > _LARGEST_TOTAL:
            raise ValueError(
                f"epsilon={self.epsilon}: needs a grid finer than 2^-30; lower epsilon, or records"
            )

    @property
    def total(self) -> int:
        """T, grid steps that make 1: a 16th of the scale, and rounding adds under 1% to Δ."""
        extra = 0.0 if self.change == 2 else 128 * self.categories / self.change
        return 1 << math.ceil(math.log2(max(256.0, 16 * self.epsilon / self.change, extra)))

    @property
    def width(self) -> int:
        """Entries of a vector, k."""
        return self.categories

    def mechanism(self) -> DiscreteLaplace:
        """In grid steps."""
        steps = quantized_simplex_sensitivity(self.total, self.categories, self.change)
        assumed = DOCUMENT_SENSITIVITY * self.total if self.seed_compat else steps
        return DiscreteLaplace(laplace_scale(self.epsilon, float(assumed)), float(steps))

    def privatize_rows(self, vectors: NDArray[np.float64], rng: NoiseGenerator) -> Rows:
        """See ``ProtectedResult``."""
        return self.mechanism().privatize_integers(quantize_simplex(vectors, self.total), rng)

    def pure_noise(self, count: int, rng: NoiseGenerator) -> Rows:
        """Noise around the uniform vector."""
        return self.privatize_rows(np.full((count, self.categories), 1 / self.categories), rng)

    def decode(self, rows: Rows) -> Decoded:
        """The noisy vectors, which lie off the simplex, and their argmax."""
        return Decoded(rows / self.total, rows.argmax(axis=1))

    def event(self) -> Event:
        """One Laplace release with the true sensitivity."""
        return self.mechanism().event()


@dataclass(frozen=True)
class LabelResponse(Protection):
    """The argmax by k-ary randomised response: kept with e^ε/(e^ε + k − 1).

    One record can turn the argmax, so records are protected no better than clients.
    """

    epsilon: float
    categories: int

    width = 1

    def __post_init__(self) -> None:
        _check(self.epsilon, self.categories)
        self._mechanism()

    def privatize_rows(self, vectors: NDArray[np.float64], rng: NoiseGenerator) -> Rows:
        """See ``ProtectedResult``."""
        return self._mechanism().privatize(vectors.argmax(axis=1), rng).astype(np.int64)[:, None]

    def pure_noise(self, count: int, rng: NoiseGenerator) -> Rows:
        """Uniform labels."""
        return uniform_below(self.categories, count, rng).astype(np.int64)[:, None]

    def decode(self, rows: Rows) -> Decoded:
        """One-hot vectors: there is no geometry beside the label."""
        return _one_hot(rows[:, 0], self.categories)

    def event(self) -> Event:
        """One label."""
        return self._mechanism().event()

    def _mechanism(self) -> RandomizedResponse:
        return RandomizedResponse(self.epsilon, self.categories)


@dataclass(frozen=True)
class ChosenLabel(Protection):
    """A label by the exponential mechanism or permute-and-flip, with the vector as scores.

    Attributes:
        epsilon: ε of one release.
        categories: k.
        change: the L1 sensitivity of the vector; one entry moves by half of it at most.
        permute: permute-and-flip in place of the exponential mechanism.
    """

    epsilon: float
    categories: int
    change: float = 2.0
    permute: bool = False

    width = 1

    def __post_init__(self) -> None:
        _check(self.epsilon, self.categories)
        self._mechanism()

    def privatize_rows(self, vectors: NDArray[np.float64], rng: NoiseGenerator) -> Rows:
        """See ``ProtectedResult``."""
        return self._mechanism().privatize(vectors, rng)[:, None]

    def pure_noise(self, count: int, rng: NoiseGenerator) -> Rows:
        """Choices where all scores are equal."""
        return self.privatize_rows(np.full((count, self.categories), 1 / self.categories), rng)

    def decode(self, rows: Rows) -> Decoded:
        """One-hot vectors: there is no geometry beside the label."""
        return _one_hot(rows[:, 0], self.categories)

    def event(self) -> Event:
        """One choice."""
        return self._mechanism().event()

    def _mechanism(self) -> ExponentialMechanism | PermuteAndFlip:
        chosen = PermuteAndFlip if self.permute else ExponentialMechanism
        return chosen(self.epsilon, sensitivity=self.change / 2)


@dataclass(frozen=True)
class SplitResult(Protection):
    """Label by ``label`` and vector by ``vector``, side by side: their ε add up."""

    label: LabelResponse
    vector: LaplaceResult

    @classmethod
    def of(cls, epsilon: float, categories: int, change: float, label_share: float) -> SplitResult:
        """``label_share`` of ``epsilon`` on the label, the rest on the vector."""
        require_probability("label_share", label_share)
        _check(epsilon, categories)
        label = LabelResponse(label_share * epsilon, categories)
        return cls(label, LaplaceResult((1 - label_share) * epsilon, categories, change))

    @property
    def categories(self) -> int:  # type: ignore[override]
        """Entries of a vector, k."""
        return self.vector.categories

    @property
    def width(self) -> int:
        """One more than k: the label comes first."""
        return 1 + self.categories

    def privatize_rows(self, vectors: NDArray[np.float64], rng: NoiseGenerator) -> Rows:
        """See ``ProtectedResult``."""
        label = self.label.privatize_rows(vectors, rng)
        return np.hstack([label, self.vector.privatize_rows(vectors, rng)])

    def pure_noise(self, count: int, rng: NoiseGenerator) -> Rows:
        """Uniform labels beside noise."""
        return np.hstack([self.label.pure_noise(count, rng), self.vector.pure_noise(count, rng)])

    def decode(self, rows: Rows) -> Decoded:
        """Noisy vectors with labels whose noise is independent of theirs."""
        return Decoded(self.vector.decode(rows[:, 1:]).vectors, rows[:, 0])

    def event(self) -> Event:
        """Both."""
        return ComposedEvent((self.label.event(), self.vector.event()))


def _one_hot(labels: NDArray[np.int64], categories: int) -> Decoded:
    return Decoded(np.eye(categories)[labels], labels)


def _check(epsilon: float, categories: int) -> None:
    require_positive("epsilon", epsilon)
    if not 2 <= categories <= 256:
        raise ValueError(f"categories={categories}: must lie in 2..256")
