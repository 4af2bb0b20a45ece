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

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from murmur.learning.one_thread import one_thread

Rows = NDArray[np.float64]


def unit(features: NDArray[np.floating]) -> Rows:
    """f/‖f‖ (n, d) of ``features`` (n, d); a record of zeros stays one."""
    rows = features.reshape(len(features), -1).astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(lengths, 1e-12)


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


def centred(rows: Rows, middle: NDArray[np.float64], constant: float, radius: float) -> Rows:
    """U (n, 1 + d) of unit ``rows`` (n, d): of length at most 1, whatever ``middle`` is.

    Args:
        rows: f/‖f‖.
        middle: c, (d,).
        constant: b in (0, 1).
        radius: q, above 0: vectors shorter than this are not stretched to full length.
    """
    away = rows - middle
    lengths = np.linalg.norm(away, axis=1, keepdims=True)
    scaled = math.sqrt(1 - constant**2) * away / np.maximum(lengths, radius)
    return np.hstack([np.full((len(rows), 1), constant), scaled])


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


@dataclass(frozen=True)
class Discriminants:
    """A linear rule on u's features: class k scores ``weights[k] · v + offsets[k]``.

    ``weights`` (C, d), ``offsets`` (C,), ``counts`` (C,): records that each class seems to have.
    """

    weights: NDArray[np.float64]
    offsets: NDArray[np.float64]
    counts: NDArray[np.float64]


def discriminants(
    matrices: NDArray[np.float64],
    records: int,
    constant: float,
    deviation: float,
    shrinkage: float,
) -> Discriminants:
    """Linear discriminants from the classes' noisy second moments ``matrices`` (C, 1 + d, 1 + d).

    Classes count alike: a threshold lies halfway between two means. A class whose count drowns in
    the noise is taken to have what √(1/C) of the noise would hide, so that nothing is divided by 0.

    Args:
        matrices: M_k.
        records: n, public.
        constant: b.
        deviation: s₂, of the noise on an entry of M.
        shrinkage: of l.
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
        inverse = axes / (np.maximum(values, 0) + max(ridge, 1e-9)) @ axes.T
        middle = means.mean(axis=0)
        weights = (means - middle) @ inverse
    offsets = -np.einsum("kd,kd->k", weights, (means + middle) / 2)
    return Discriminants(weights, offsets, counts)
