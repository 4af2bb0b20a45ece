"""Second moments of classes: two noisy sums, and linear discriminants from them.

The sum over owners of sums over records protects a record however the records lie: equally over the
owners or skewed, the result is the same, and no owner alone can have it.

    release 1:  S = Σ f/‖f‖ + noise,   c = S/n · max(0, 1 − (s₁/n)² d/‖S/n‖²)
    u = (b, √(1−b²)·v/max(‖v‖, q)),    v = f/‖f‖ − c
    release 2:  M_k = Σ_{y=k} u uᵀ + noise,   upper triangle, off-diagonals × √2
    n_k = M_k[0,0]/b²,  m_k = M_k[0,1:]/(b n_k),  S_w = mean_k(M_k/n_k − m_k m_kᵀ)
    w = (S_w⁺ + lI)^(−1) (m_k − mean m),   l = shrinkage · s₂√(2d) · mean_k 1/n_k

Symbols: f = the run's features, d = how many, n = the public number of records, b = ``constant``,
q = ``radius``, s₁ and s₂ = the noise's deviation on an entry of either sum. Centring is the step
that matters: features' common part says nothing of classes and takes the norm.

Exchanging one record moves release 1 by at most 2 and release 2 by at most √2: outer products have
non-negative inner products, so ‖a − b‖² ≤ ‖a‖² + ‖b‖².
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from murmur.learning.codec import MAX_GRID_ENTRY, GridCodec
from murmur.learning.linear_model import Head, unit
from murmur.learning.process import one_thread
from murmur.privacy.accounting.gaussian import MIN_CLIENT_SIGMA, MIN_CONTINUOUS_SIGMA
from murmur.privacy.budget import Budget
from murmur.privacy.events import Event, Unit
from murmur.privacy.mechanisms.distributed_gaussian import DistributedGaussian, NoNoise, SharedNoise
from murmur.privacy.noise import NoiseGenerator

Rows = NDArray[np.float64]
CENTRE = "centre"
"""The purpose of the question for release 1."""

_BLOCK_RECORDS = 256  # records at a time
_MIN_RELATIVE_RIDGE = 0.01  # of the mean eigenvalue of the classes' covariance
_MAX_STEP_BITS = 20  # an entry of 1 is 2²⁰ steps, or fewer where sums of many records need the room


class NoisySum:
    """A sum over clients of one bounded vector for each protected unit, with noise that they share.

    A unit is a record, of which a client adds up many, or a client. Vectors are rounded one by one
    towards zero, each by less than a step an entry, so that exchanging a unit moves the integers by
    at most Δ + 2√p steps, where it moves exact numbers by Δ.

    Args:
        budget: of which this release has ``part`` (``Budget.noise_multiplier``).
        size: p, entries of a vector.
        sensitivity: Δ, in L2.
        part: of μ², in (0, 1].
        unit: whose exchange Δ is about.
        most: the largest number of units that one client may hold, public.

    Attributes:
        codec: the form in which it travels.

    Raises:
        ValueError: no grid of 32 bits holds such sums and is fine beside the noise.
    """

    def __init__(
        self, budget: Budget, size: int, sensitivity: float, part: float, unit: Unit, most: int
    ) -> None:
        self.unit = unit
        honest = budget.honest_clients
        self.noise: SharedNoise = NoNoise()
        for bits in range(_MAX_STEP_BITS, -1, -1):
            if budget.is_private:
                moved = sensitivity * 2.0**bits + 2 * math.sqrt(size)
                sigma = budget.noise_multiplier(part) * moved
                self.noise = DistributedGaussian(sigma, moved, honest)
            if most * 2**bits + self.noise.max_abs <= MAX_GRID_ENTRY:
                break
        coarse = bits < 1
        if budget.is_private:
            coarse |= (
                self.noise.deviation(honest) < MIN_CONTINUOUS_SIGMA
                or self.noise.deviation(1) < MIN_CLIENT_SIGMA
            )
        if coarse:
            raise ValueError(
                f"records={most}: sums of so many records at epsilon={budget.epsilon:g} do not "
                "fit into 32 bits; lower privacy.epsilon, or state how many one client has at most"
            )
        max_abs = self.noise.max_abs
        self.steps = 1 << bits
        self.largest = most * self.steps
        self.codec = GridCodec(size, 1 / self.steps, self.largest + max_abs, max_abs)

    def event(self) -> Event:
        """One client's message, to whoever reads it.

        A sum over honest clients hides it by their noise as well (``Hiding.NOISE``); with the noise
        of h clients together it keeps its part of the budget.
        """
        return self.noise.release(self.unit)

    def rounded(self, vectors: Rows) -> NDArray[np.int64]:
        """The sum (p,) of ``vectors`` (n, p) in steps, each rounded towards zero by itself.

        None may be longer than the sensitivity allows; nothing is clipped here.
        """
        return np.trunc(vectors * self.steps).astype(np.int64).sum(axis=0)

    def privatize(self, total: NDArray[np.int64], rng: NoiseGenerator) -> NDArray[np.int64]:
        """One client's ``total`` (p,), cut to what ``most`` units can reach, with its noise."""
        steps = np.clip(total, -self.largest, self.largest)
        return self.noise.privatize_integers(steps, rng)

    def read(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """The sum (p,) that ``total`` (p,), a sum over any number of clients, stands for."""
        return self.codec.mean(total, 1)

    def deviation(self, clients: int) -> float:
        """σ of the noise on an entry of a sum over ``clients``, in the units of a vector."""
        return self.noise.deviation(clients) / self.steps


class CentreSum(NoisySum):
    """The sum of f/‖f‖ over records, or of the clients' means: two of norm 1 are 2 apart.

    Args:
        budget: of which this release has ``part``.
        features: d.
        part: of μ², in (0, 1].
        unit: whether a record or a client is hidden.
        most: the largest number of records that one client may hold; 1 with clients as the unit.
    """

    def __init__(self, budget: Budget, features: int, part: float, unit: Unit, most: int) -> None:
        super().__init__(budget, features, 2.0, part, unit, most)

    def of(self, images: NDArray[np.float32]) -> NDArray[np.int64]:
        """One client's part, (d,) in steps, of its features (n, d, 1, 1)."""
        if self.unit is Unit.RECORD:
            return self.rounded(unit(images))
        mean = unit(images).sum(axis=0, keepdims=True) / max(1, len(images))
        return self.rounded(mean)


def beside_centre(budget: Budget, head: Head, share: float) -> tuple[Budget, CentreSum | None]:
    """The budget of rounds before which clients release one centre each, and that release.

    Without a centre the ``budget`` itself, and None. ``share``: of μ², what the centre gets.
    """
    if head.radius is None:
        return budget, None
    shared = replace(budget, prerun_fraction=share)
    return shared, CentreSum(shared, head.features, share, Unit.CLIENT, 1)


class MomentSum(NoisySum):
    """The sum of each class's u uᵀ over records, or of the clients' means of these, (C·p,).

    Means of a client's, stacked over classes, have norm 1 at most and non-negative inner products
    as well.

    Args:
        budget: of which this release has ``part``.
        features: d.
        classes: C.
        part: of μ², in (0, 1].
        unit: whether a record or a client is hidden.
        most: the largest number of records that one client may hold; 1 with clients as the unit.
        constant: b in (0, 1).
    """

    def __init__(
        self,
        budget: Budget,
        features: int,
        classes: int,
        part: float,
        unit: Unit,
        most: int,
        constant: float,
    ) -> None:
        self.classes = classes
        self.width = features + 1
        self.constant = constant
        size = classes * self.width * (self.width + 1) // 2
        super().__init__(budget, size, math.sqrt(2), part, unit, most)

    def of(self, inputs: Rows, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """One client's part, (C·p,) in steps, of the directions of its records.

        Args:
            inputs: v/max(‖v‖, q), (n, d), of length at most 1.
            labels: classes (n,).
        """
        found = np.zeros((self.classes, self.codec.size // self.classes), np.int64)
        means = np.zeros(found.shape)
        for start in range(0, len(labels), _BLOCK_RECORDS):
            block = slice(start, start + _BLOCK_RECORDS)
            triangles = packed(with_constant(inputs[block], self.constant))
            for label in np.unique(labels[block]):
                chosen = triangles[labels[block] == label]
                if self.unit is Unit.RECORD:
                    found[label] += self.rounded(chosen)
                else:
                    means[label] += chosen.sum(axis=0) / len(labels)
        if self.unit is Unit.CLIENT:
            found = self.rounded(means.reshape(1, -1))
        return found.ravel()

    def matrices(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """M_k (C, 1 + d, 1 + d) of the sum over clients; noise may leave them indefinite."""
        return unpacked(self.read(total).reshape(self.classes, -1), self.width)


class Releases:
    """Both sums of one federation, under one budget; both halves of the algorithm have them.

    Args:
        budget: for both together; it says whether a record or a client is hidden.
        head: of a centred model.
        constant: b.
        records: n, of all clients together, public; None: the sum of ``sizes``.
        sizes: of all clients, where they are public.
        centre_share: of μ², what the centre gets.

    Raises ValueError where the model has no centre, a budget is for more than one round, or neither
    ``records`` nor ``sizes`` is there.
    """

    def __init__(
        self,
        budget: Budget,
        head: Head,
        constant: float,
        records: int | None,
        sizes: Sequence[int] | None,
        centre_share: float,
    ) -> None:
        if head.radius is None:
            raise ValueError("class_moments: releases a centre; set model=centred")
        if budget.rounds != 1:
            raise ValueError(
                f"num_rounds={budget.rounds}: moments are released once; set "
                "federation.num_rounds=1"
            )
        self.unit = Unit(budget.unit)
        most = 1
        if self.unit is Unit.RECORD:
            if records is None and sizes is None:
                raise ValueError(
                    "records=null: the number of all clients' records is public here; set it, or "
                    "publish the clients' sizes"
                )
            most = records or max(sizes or [1])
        shared = replace(budget, prerun_fraction=centre_share)
        features = head.features
        self.centre = CentreSum(shared, features, centre_share, self.unit, most)
        self.moments = MomentSum(
            shared, features, head.classes, 1 - centre_share, self.unit, most, constant
        )


def centre(total: NDArray[np.float64], records: int, deviation: float) -> NDArray[np.float64]:
    """C (d,) from the noisy sum S (d,) of ``records`` unit vectors, shrunk by what noise explains.

    ``deviation``: s₁, of the noise on an entry of S.
    """
    mean = total / records
    length = float(mean @ mean)
    noise = len(mean) * (deviation / records) ** 2
    if length <= noise:
        return np.zeros_like(mean)
    return mean * (1 - noise / length)


def with_constant(inputs: Rows, constant: float) -> Rows:
    """(b, √(1−b²)·x) (n, 1 + d) of ``inputs`` x (n, d) of length at most 1."""
    scaled = math.sqrt(1 - constant**2) * inputs
    return np.hstack([np.full((len(inputs), 1), constant), scaled])


def packed(rows: Rows) -> Rows:
    """The upper triangles of u uᵀ with off-diagonals × √2, (n, (1 + d)(2 + d)/2): as long as u².

    Inner products of these are inner products of the matrices.
    """
    first, second = np.triu_indices(rows.shape[1])
    factors = np.where(first == second, 1.0, math.sqrt(2))
    return rows[:, first] * rows[:, second] * factors


def unpacked(values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The symmetric matrices (k, size, size) of which ``values`` (k, size(size + 1)/2) tell."""
    first, second = np.triu_indices(size)
    matrices = np.zeros((len(values), size, size))
    matrices[:, first, second] = values / np.where(first == second, 1.0, math.sqrt(2))
    matrices[:, second, first] = matrices[:, first, second]
    return matrices


def discriminants(
    matrices: NDArray[np.float64],
    records: int,
    constant: float,
    deviation: float,
    shrinkage: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Linear discriminants from the classes' noisy second moments ``matrices`` (C, 1 + d, 1 + d).

    A rule on u's features by which class k scores ``weights[k] · v + offsets[k]``. Classes count
    alike: a threshold lies halfway between two means. A class is taken to have at
    least one record, a twentieth of an equal share of them, and one deviation of the noise on its
    count, so that nothing is divided by 0. Post-processing throughout.

    Args:
        matrices: M_k.
        records: n, public; of clients as the unit their number.
        constant: b.
        deviation: s₂, of the noise on an entry of M.
        shrinkage: of l.

    Returns:
        Weights (C, d) and offsets (C,).
    """
    classes, size = matrices.shape[:2]
    least = max(1.0, records / (20 * classes), deviation / constant**2)
    counts = np.maximum(matrices[:, 0, 0] / constant**2, least)
    means = matrices[:, 0, 1:] / (constant * counts[:, None])
    within = np.zeros((size - 1, size - 1))
    for matrix, count, mean in zip(matrices, counts, means, strict=True):
        within += matrix[1:, 1:] / count - np.outer(mean, mean)
    within /= classes
    ridge = shrinkage * deviation * math.sqrt(2 * (size - 1)) * float(np.mean(1 / counts))
    with one_thread():
        values, axes = np.linalg.eigh((within + within.T) / 2)
        values = np.maximum(values, 0)
        # Without noise directions in which records hardly differ would decide, and those of test
        # records may differ there.
        ridge = max(ridge, _MIN_RELATIVE_RIDGE * float(values.mean()), 1e-9)
        inverse = axes / (values + ridge) @ axes.T
        middle = means.mean(axis=0)
        weights = (means - middle) @ inverse
    offsets = -np.einsum("kd,kd->k", weights, (means + middle) / 2)
    return weights, offsets


def signal_to_noise(units: int, classes: int, features: int, deviation: float) -> float:
    """R = n/(√C·s₂·√(2d)): records beside the largest eigenvalue of the noise on S_w.

    S_w is the mean over classes of M_k/n_k with n_k = n/C, so that its noise has deviation
    s₂·√C/n in each entry.

    Args:
        units: n, records or clients in the sum.
        classes: C.
        features: d.
        deviation: s₂, of the noise on an entry of M; above 0.
    """
    return units / (deviation * math.sqrt(2 * classes * features))
