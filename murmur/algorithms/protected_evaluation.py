"""Protected inference results: what one client's evaluation sends, under local or summed noise.

After "Horizontal Federated-Local Differential Privacy Inference Result Protection" (MindSpore
Federated documentation). A ``Protection`` is a frozen value: ``privatize`` turns a probability
vector into a row of integers that may leave the client, ``event`` says what that cost, ``decode``
is what the server reads out of rows. ``ResultSettings`` makes one of what a user writes.

Sensitivity: two probability vectors are at L1 distance 2 (the document says 1), so a vector that
may change altogether has Δ = 2 (unit client), and the mean of n records' vectors, of which one
record is replaced, has Δ = 2/n (unit record). Noise is added to integers on a grid.

``ProtectedCounts`` is for supervised models, and not in the document: how many of its examples a
client's model gets right and wrong. Replacing one record can turn a right one into a wrong one: L1
distance 2, L2 √2. So it is with the sample of a client with more records, which one record moves by
one (``murmur.privacy.record_choice.fixed_sample``). Of a client with fewer than m both counts add
up to how many there are; one more moves one count by 1, which the noise covers as well. Replacing
the client can change all of at most m examples: m times that.

First come vectors, one class for each protection and ``ResultSettings`` that chooses; then counts.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from murmur.checks import require_positive, require_probability
from murmur.learning.codec import MAX_GRID_ENTRY, GridCodec
from murmur.privacy.budget import Budget
from murmur.privacy.events import Adjacency, ComposedEvent, Event, Release, Unit
from murmur.privacy.mechanisms.clipping import project_simplex
from murmur.privacy.mechanisms.discrete_laplace import DiscreteLaplace, laplace_scale
from murmur.privacy.mechanisms.distributed_gaussian import DistributedGaussian
from murmur.privacy.mechanisms.exact_sampling import uniform_below
from murmur.privacy.mechanisms.grid import quantize_simplex, quantized_simplex_sensitivity
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse
from murmur.privacy.mechanisms.selection import ExponentialMechanism, PermuteAndFlip
from murmur.privacy.noise import NoiseGenerator
from murmur.settings import Fraction, Positive, settings

Rows = NDArray[np.int64]

PRIVACY = ("none", "laplace", "krr", "exponential", "permute_and_flip", "split")
UNITS = ("client", "record")
CLEAN_TOTAL = 1 << 20  # grid steps that make 1 where a simulation shows the clean vector
_DOCUMENT_SENSITIVITY = 1.0  # what the document takes for Δ; the truth is 2
_MAX_TOTAL = 1 << 30  # rows travel as 32-bit integers


class Decoded(NamedTuple):
    """Decoded rows: ``vectors`` (n, k), and the ``labels`` (n,) that they are scored by."""

    vectors: NDArray[np.float64]
    labels: NDArray[np.int64]


def project(decoded: Decoded) -> Decoded:
    """Vectors moved to the nearest point of the simplex: a score of noise then looks fine."""
    return Decoded(project_simplex(decoded.vectors), decoded.labels)


# Vectors ----------------------------------------------------------------------------------------


@settings
class Protection(ABC):
    """One way to protect a vector; rows have ``width`` integers.

    Each release is private by itself, against whoever reads it: no sum is needed. What a release
    costs is for replace-one neighbours, of the unit that ``change`` is about.

    Attributes:
        epsilon: ε of one release.
        categories: k, entries of a vector.
        change: Δ, the L1 sensitivity: 2 for a client, 2/n for a record of n.
    """

    epsilon: Positive
    categories: Annotated[int, Field(ge=2, le=256)]
    change: Annotated[float, Field(gt=0, le=2)] = 2.0

    @property
    def width(self) -> int:
        """Integers in a row: one, a label, unless a protection says more."""
        return 1

    def privatize(self, vector: ArrayLike, rng: NoiseGenerator) -> Rows:
        """The release (width,) of one client's vector (k,).

        Raises:
            ValueError: the vector has another shape, or is not on the simplex; nothing is drawn.
        """
        values = np.asarray(vector)
        if values.shape != (self.categories,) or values.dtype.kind not in "fiu":
            raise ValueError(
                f"vector={values.dtype}{list(values.shape)}: must be one probability for each of "
                f"{self.categories} categories"
            )
        values = values.astype(np.float64)
        total = values.sum()
        if not (np.isfinite(values).all() and (values >= 0).all() and abs(total - 1) <= 1e-6):
            raise ValueError(
                "vector: must be non-negative and sum to 1; put the model's outputs through softmax"
            )
        return self.privatize_rows((values / total)[None], rng)[0]

    @abstractmethod
    def privatize_rows(self, vectors: NDArray[np.float64], rng: NoiseGenerator) -> Rows:
        """The releases (n, width) of n clients' vectors (n, k), which lie on the simplex."""

    def pure_noise(self, count: int, rng: NoiseGenerator) -> Rows:
        """``count`` rows that hold noise of the same scale and no data: of the uniform vector."""
        return self.privatize_rows(np.full((count, self.categories), 1 / self.categories), rng)

    def decode(self, rows: Rows) -> Decoded:
        """Decode rows (n, width) on the server; of a label there is no other geometry."""
        return Decoded(np.eye(self.categories)[rows[:, 0]], rows[:, 0])

    @abstractmethod
    def event(self) -> Event:
        """Event of one release."""


@settings
class LaplaceResult(Protection):
    """The vector plus discrete Laplace noise on a grid of 1/``total``.

    Attributes:
        seed_compat: scale the noise to Δ = 1 as the document does, which calls ``epsilon`` what is
            half of it. The event tells the truth.

    Raises:
        ValueError: ``seed_compat`` for records, or an ε that needs a finer grid than 2⁻³⁰.
    """

    seed_compat: bool = False

    def __post_init__(self) -> None:
        if self.seed_compat and self.change != 2:
            raise ValueError(
                "seed_compat=true: reproduces the document, which protects clients; set unit=client"
            )
        if self.total > _MAX_TOTAL:
            raise ValueError(
                f"epsilon={self.epsilon}: needs a grid finer than 2^-30; lower epsilon, or records"
            )

    @property
    def total(self) -> int:
        """T, grid steps that make 1: a 16th of the scale, and rounding adds under 1% to Δ."""
        least = max(256.0, 16 * self.epsilon / self.change)
        if self.change != 2:
            least = max(least, 128 * self.categories / self.change)
        return 1 << math.ceil(math.log2(least))

    @property
    def width(self) -> int:
        """All entries of the vector."""
        return self.categories

    def mechanism(self) -> DiscreteLaplace:
        """The noise, in grid steps."""
        steps = float(quantized_simplex_sensitivity(self.total, self.categories, self.change))
        assumed = steps
        if self.seed_compat:
            assumed = _DOCUMENT_SENSITIVITY * self.total
        return DiscreteLaplace(laplace_scale(self.epsilon, assumed), steps)

    def privatize_rows(self, vectors: NDArray[np.float64], rng: NoiseGenerator) -> Rows:
        """Noisy vectors in grid steps."""
        return self.mechanism().privatize_integers(quantize_simplex(vectors, self.total), rng)

    def decode(self, rows: Rows) -> Decoded:
        """The noisy vectors, which lie off the simplex, and their argmax."""
        return Decoded(rows / self.total, rows.argmax(axis=1))

    def event(self) -> Event:
        """One Laplace release with the true sensitivity."""
        return self.mechanism().event()


@settings
class LabelResponse(Protection):
    """The argmax by k-ary randomised response: kept with e^ε/(e^ε + k − 1).

    One record can turn the argmax, so records are protected no better than clients.
    """

    def privatize_rows(self, vectors: NDArray[np.float64], rng: NoiseGenerator) -> Rows:
        """Labels."""
        return self._mechanism.privatize(vectors.argmax(axis=1), rng).astype(np.int64)[:, None]

    def pure_noise(self, count: int, rng: NoiseGenerator) -> Rows:
        """Uniform labels: of the uniform vector, the argmax would always be the first."""
        return uniform_below(self.categories, count, rng).astype(np.int64)[:, None]

    def event(self) -> Event:
        """One label."""
        return self._mechanism.event()

    @property
    def _mechanism(self) -> RandomizedResponse:
        return RandomizedResponse(self.epsilon, self.categories)


@settings
class ChosenLabel(Protection):
    """A label by the exponential mechanism, or permute-and-flip, with the vector as scores.

    One entry of the vector moves by half of ``change`` at most.

    Attributes:
        permute: whether by permute-and-flip.
    """

    permute: bool = False

    def privatize_rows(self, vectors: NDArray[np.float64], rng: NoiseGenerator) -> Rows:
        """Labels."""
        return self._mechanism.privatize(vectors, rng)[:, None]

    def event(self) -> Event:
        """One choice."""
        return self._mechanism.event()

    @property
    def _mechanism(self) -> ExponentialMechanism | PermuteAndFlip:
        if self.permute:
            return PermuteAndFlip(self.epsilon, sensitivity=self.change / 2)
        return ExponentialMechanism(self.epsilon, sensitivity=self.change / 2)


@settings
class SplitResult(Protection):
    """A label and a vector side by side, whose parts of ε add up.

    Attributes:
        label_share: of ε, in (0, 1), what the label gets; the vector gets the rest.
    """

    label_share: Fraction = 0.5

    @cached_property
    def label(self) -> LabelResponse:
        """How the label is protected."""
        return LabelResponse(self.label_share * self.epsilon, self.categories)

    @cached_property
    def vector(self) -> LaplaceResult:
        """How the vector is protected."""
        return LaplaceResult((1 - self.label_share) * self.epsilon, self.categories, self.change)

    @property
    def width(self) -> int:
        """One more than k: the label comes first."""
        return 1 + self.categories

    def privatize_rows(self, vectors: NDArray[np.float64], rng: NoiseGenerator) -> Rows:
        """Labels beside noisy vectors."""
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


@settings
class ResultSettings:
    """How a vector is protected, as a user writes it.

    Attributes:
        privacy: one of ``PRIVACY``; ``none`` uploads nothing.
        epsilon: ε of one release.
        unit: ``client`` (Δ = 2) or ``record`` (Δ = 2/``records``).
        records: the fewest records behind a vector, a public number; a client with fewer
            refuses. For ``unit=record`` only.
        label_share: how much of ε ``split`` spends on the label.
        seed_compat: noise for Δ = 1, as in the document; only with laplace and clients.
    """

    privacy: Literal["none", "laplace", "krr", "exponential", "permute_and_flip", "split"]
    epsilon: Positive
    unit: Literal["client", "record"] = "client"
    records: int | None = None
    label_share: Fraction = 0.5
    seed_compat: bool = False

    def __post_init__(self) -> None:
        if self.unit == "record" and (self.records is None or self.records < 1):
            raise ValueError(
                f"records={self.records}: unit=record needs a public number of at least 1"
            )
        if self.seed_compat and self.privacy != "laplace":
            raise ValueError(
                f"seed_compat=true: the document's noise is Laplace's, not privacy={self.privacy}"
            )

    @classmethod
    def of(
        cls, settings: Mapping[str, Any], client_sizes: Sequence[int] | None
    ) -> "ResultSettings":
        """From a user's ``settings``.

        Args:
            settings: the fields by name.
            client_sizes: public; the least of them counts for ``records`` of unit record where that
                is unset. None: not public.

        Raises:
            ValueError: a field is out of range, or records need a number that nobody has stated.
        """
        filled = dict(settings)
        if filled.get("unit") == "record" and filled.get("records") is None and client_sizes:
            filled["records"] = min(client_sizes)
        return cls(**filled)

    @property
    def is_on(self) -> bool:
        """True if anything is sent."""
        return self.privacy != "none"

    @property
    def change(self) -> float:
        """Δ: the L1 sensitivity of a vector."""
        if self.unit == "client" or self.records is None:
            return 2.0
        return 2.0 / self.records

    def protection(self, categories: int) -> Protection:
        """The protection of vectors of ``categories`` entries; ValueError for ``none``."""
        common = (self.epsilon, categories, self.change)
        match self.privacy:
            case "laplace":
                return LaplaceResult(*common, self.seed_compat)
            case "krr":
                return LabelResponse(*common)
            case "exponential" | "permute_and_flip":
                return ChosenLabel(*common, self.privacy == "permute_and_flip")
            case "split":
                return SplitResult(*common, self.label_share)
        raise ValueError("privacy=none: uploads nothing, so there is no protection to ask for")

    def release(self, categories: int) -> Release:
        """Event of one vector of ``categories`` entries."""
        event = self.protection(categories).event()
        return Release(event, Unit(self.unit), Adjacency.REPLACE_ONE)


def epsilon_for_error(error: float, probability: float, sensitivity: float = 2.0) -> float:
    """The ε at which Laplace noise stays within ±``error`` with ``probability``, entry by entry.

    Δ · ln(1/(1−p)) / a, the document's rule. A setting of utility: nothing in it asks whether
    the ε that comes out protects anybody.

    Args:
        error: a, above 0.
        probability: p in (0, 1).
        sensitivity: Δ; the document takes 1.
    """
    require_positive("error", error)
    require_probability("probability", probability)
    require_positive("sensitivity", sensitivity)
    return sensitivity * -math.log1p(-probability) / error


# Counts -----------------------------------------------------------------------------------------


@settings
class ProtectedCounts:
    """Counts of right and wrong predictions under ``epsilon``-DP, replace-one.

    Attributes:
        epsilon: ε of one release.
        unit: ``client`` or ``record``.
        examples: m, the most examples that a client counts.
        noise: ``laplace`` on each client's own counts, pure ε; ``gaussian``, (ε, δ), of which a
            client adds its share where the server sees sums only, and all of it otherwise.
        delta: δ of one release, for ``gaussian``.
        honest_clients: how many share the noise of a sum, for ``gaussian``.
    """

    epsilon: Positive
    unit: Literal["client", "record"]
    examples: Annotated[int, Field(ge=1, le=1 << 20)]
    noise: Literal["laplace", "gaussian"] = "laplace"
    delta: float = 0.0
    honest_clients: int = 1

    def __post_init__(self) -> None:
        largest = 16 * 2.0 * self._changed  # the noise's scale is at least a 16th of a count
        if self.epsilon > largest:
            raise ValueError(f"epsilon={self.epsilon}: must be at most {largest:g} for counts")
        if self._most_steps() > MAX_GRID_ENTRY:
            raise ValueError(f"examples={self.examples}: with their noise exceed 32 bits; lower it")

    @classmethod
    def of(cls, settings: Mapping[str, Any], budget: Budget) -> "ProtectedCounts":
        """From a user's ``settings``.

        Args:
            settings: the fields by name, without ``delta`` and ``honest_clients``.
            budget: of the run; says who shares the noise of a sum, and at which δ.
        """
        if settings.get("noise", "laplace") == "laplace":
            return cls(**settings)
        return cls(**settings, delta=budget.delta_of_noise, honest_clients=budget.honest_clients)

    @property
    def is_summed(self) -> bool:
        """True if the server needs the clients' sum only."""
        return self.noise == "gaussian"

    def privatize(self, counts: NDArray[np.int64], rng: NoiseGenerator) -> NDArray[np.int64]:
        """The release (2,) of the counts (2,); ValueError unless they are counts of 1 to m."""
        counts = np.asarray(counts)
        if counts.shape != (2,) or counts.dtype.kind not in "iu" or counts.min() < 0:
            raise ValueError(f"counts={counts.dtype}{list(counts.shape)}: must be two counts")
        if not 1 <= counts.sum() <= self.examples:
            raise ValueError(f"counts: must be of 1 to examples={self.examples} predictions")
        steps = counts.astype(np.int64) * round(1 / self.codec.grid)
        return self._mechanism.privatize_integers(steps, rng)

    @cached_property
    def codec(self) -> GridCodec:
        """Two counts, in steps of the noise's grid."""
        mechanism = self._mechanism
        if isinstance(mechanism, DiscreteLaplace):
            return GridCodec(2)
        return GridCodec(2, mechanism.grid, self._most_steps(), mechanism.max_abs)

    def _most_steps(self) -> int:
        """The largest entry that a client sends into a sum, in steps; 0 where nothing is summed."""
        mechanism = self._mechanism
        if isinstance(mechanism, DiscreteLaplace):
            return 0
        return round(self.examples / mechanism.grid) + mechanism.max_abs

    def deviation(self, clients: int) -> float:
        """The standard deviation of the noise on one count of a sum over ``clients``, at most."""
        mechanism = self._mechanism
        if isinstance(mechanism, DiscreteLaplace):
            return math.sqrt(2) * mechanism.scale * math.sqrt(clients)
        return mechanism.deviation(clients)

    def event(self) -> Event:
        """One release of both counts, to whoever reads it."""
        mechanism = self._mechanism
        if isinstance(mechanism, DiscreteLaplace):
            return Release(mechanism.event(), Unit(self.unit), Adjacency.REPLACE_ONE)
        return mechanism.release(Unit(self.unit))

    @property
    def _changed(self) -> int:
        """How many examples may turn from right to wrong."""
        if self.unit == "client":
            return self.examples
        return 1

    @cached_property
    def _mechanism(self) -> DiscreteLaplace | DistributedGaussian:
        if not self.is_summed:
            return DiscreteLaplace.calibrated(self.epsilon, 2.0 * self._changed)
        return DistributedGaussian.calibrated(
            self.epsilon,
            self.delta,
            math.sqrt(2) * self._changed,
            honest_clients=self.honest_clients,
            coarsest=1.0,  # a count is a whole number of steps
        )
