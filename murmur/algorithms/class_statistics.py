"""Class statistics: one release of what each client's classes look like, and what its sum teaches.

A baseline of this project's own, for sums; there is no paper. Client i releases once

    A_i = Σ_c n_c^(−b) Σ_{x∈c} φ(x)(e_c − 1/C)ᵀ, scaled to norm 1          (``moments``)

as integers with its share of discrete Gaussian noise (``StatisticsRelease``). The server takes from
the noisy sum, and from a model of the unlabelled pool, the linear model that explains both best
(``posterior``); all of that is post-processing. φ are fixed features of an image, or its
``coordinates`` in the pool's graph of neighbours (Belkin and Niyogi, "Using manifold structure for
partially labelled classification", NIPS 2002): what varies least along the graph tells its clusters
apart, so that a class that is a cluster or two needs a dozen numbers instead of hundreds, and far
less noise hides it. Symbols: d or k = numbers for each class, C = classes, P = images of the pool.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.codec import MAX_GRID_ENTRY, GridCodec
from murmur.learning.linear_model import centred
from murmur.learning.process import one_thread
from murmur.privacy.budget import Budget
from murmur.privacy.events import Event
from murmur.privacy.mechanisms.clipping import CLIP_STEPS, truncate
from murmur.privacy.mechanisms.distributed_gaussian import DistributedGaussian, NoNoise, SharedNoise
from murmur.privacy.noise import NoiseGenerator
from murmur.random import experiment_rng


class StatisticsRelease:
    """The release of a matrix (k, C) of norm 1 under ``budget``; both halves have one.

    The noise on an entry is the same whatever k, and what little norm there is goes to the first
    components of whitened features at once: few clients do better with few of them. Exchanging a
    client replaces one vector of norm 1 by another: Δ = 2.

    Args:
        budget: of one client, for one round; where it is against who sees sums only, the noise that
            keeps it is that of all honest clients together.
        features: d.
        classes: C.
        components: k, how many of the features are released, the first ones; None: all.

    Attributes:
        shape: (k, C).
        noise: one client's share; ``NoNoise`` without a budget.
        codec: the form in which a release travels, in steps of 2⁻²⁰.

    Raises:
        ValueError: clients would release more than once, k is out of range, or no int32 holds the
            noise.
    """

    def __init__(
        self, budget: Budget, features: int, classes: int, components: int | None = None
    ) -> None:
        if budget.rounds != 1:
            raise ValueError(
                f"num_rounds={budget.rounds}: class statistics are released once; set "
                "federation.num_rounds=1"
            )
        if components is not None and not 1 <= components <= features:
            raise ValueError(
                f"components={components}: must lie in 1..{features}, the number of features"
            )
        self.shape = (components or features, classes)
        self.noise: SharedNoise = NoNoise()
        if budget.is_private:
            self.noise = _calibrated(budget.epsilon, budget.delta_of_noise, budget.honest_clients)
        max_abs = self.noise.max_abs
        if CLIP_STEPS + max_abs > MAX_GRID_ENTRY:
            raise ValueError(f"epsilon={budget.epsilon:g}: needs more noise than 32 bits can hold")
        self.codec = GridCodec(
            self.shape[0] * classes, 1 / CLIP_STEPS, CLIP_STEPS + max_abs, max_abs
        )

    def event(self) -> Event:
        """One client's message, to whoever reads it; in a sum others' noise hides it as well."""
        return self.noise.release()

    def privatize(self, matrix: NDArray[np.float64], rng: NoiseGenerator) -> NDArray[np.int64]:
        """``matrix`` (k, C) as integers (k·C,), with one client's noise.

        ValueError where it is longer than 1 or not finite.
        """
        steps = truncate(matrix, 1.0).ravel()
        return self.noise.privatize_integers(steps, rng)

    def read(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """The sum of the clients' matrices, (k, C), with all their noise in it."""
        return self.codec.mean(total, 1).reshape(self.shape)

    def sigma(self, clients: int) -> float:
        """Standard deviation of the noise on an entry of a sum over ``clients``."""
        return self.noise.deviation(clients) / CLIP_STEPS


@lru_cache(maxsize=64)
def _calibrated(epsilon: float, delta: float, honest_clients: int) -> DistributedGaussian:
    return DistributedGaussian.calibrated(
        epsilon, delta, 2.0 * CLIP_STEPS, honest_clients=honest_clients, grid=1.0
    )


def moments(
    features: NDArray[np.float32], labels: NDArray[np.int64], classes: int, balance: float = 0.5
) -> NDArray[np.float64]:
    """A (d, C) of one client's examples, of Frobenius norm 1; 0 where there are none.

    Args:
        features: φ of its examples, (n, d).
        labels: their classes, (n,).
        classes: C.
        balance: b, how far the client's small classes count as much as its large ones: 0 not at
            all, 1 in full.
    """
    counts = np.bincount(labels, minlength=classes)
    rows = centred(labels, classes) / (counts[labels] ** float(balance))[:, None]
    with one_thread():
        total = features.astype(np.float64).T @ rows
    norm = float(np.linalg.norm(total))
    if norm > 0:
        return total / norm
    return total


def posterior(
    total: NDArray[np.float64],
    pool: NDArray[np.float32],
    prior: NDArray[np.float64],
    sigma: float,
    clients: int,
) -> NDArray[np.float64]:
    """W (d, C): ``prior`` W₀, and of the noisy sum ``total`` what the pool does not explain.

    In the eigenbasis g of the second moment of ``pool`` (P, d) the sum is νgW + noise, with ν by
    least squares. Noise of variance s² = σ² + N/(Cd): the mechanism's, and that of ``clients``
    vectors of norm 1. W − W₀ is taken as Gaussian of variance τ, which is estimated from what is
    left over the noise; where nothing is left, W is W₀.

    Args:
        total: the sum of the clients' matrices, (d, C).
        pool: features of the public pool, (P, d).
        prior: W₀, (d, C).
        sigma: σ of the noise on an entry of the sum.
        clients: N, over whom the sum is.
    """
    with one_thread():
        rows = pool.astype(np.float64)
        scale, axes = np.linalg.eigh(rows.T @ rows / len(rows))
        g = np.maximum(scale, 0)[:, None]
        seen = axes.T @ total
        explained = g * (axes.T @ prior)
        strength = float((seen * explained).sum() / max((explained**2).sum(), 1e-300))
        left = seen - strength * explained
        noise = sigma**2 + clients / total.size
        gain = strength**2 * g**2
        excess = float((left**2 - noise).sum())
        spread = max(0.0, excess / (total.shape[1] * max(float(gain.sum()), 1e-300)))
        step = spread * strength * g / (gain * spread + noise) * left
        return prior + axes @ step


def coordinates(graph: Any, count: int) -> NDArray[np.float32]:
    """The first eigenvectors of the pool's graph, standardised.

    The same for the same graph: the search begins from a fixed vector, on one thread.

    Args:
        graph: S (P, P), sparse (``LabelSpreading.graph``).
        count: how many; below P.

    Returns:
        (P, count), those of the largest eigenvalues first, each of mean 0 and deviation 1.
    """
    from scipy.sparse.linalg import eigsh

    start = experiment_rng(0, "eigenvectors").standard_normal(graph.shape[0])
    with one_thread():
        values, axes = eigsh(graph, k=count, which="LA", v0=start)
    axes = axes[:, np.argsort(-values, kind="stable")]
    axes = (axes - axes.mean(axis=0)) / np.maximum(axes.std(axis=0), 1e-12)
    return axes.astype(np.float32)


def located(
    rows: NDArray[np.float32],
    pool: NDArray[np.float32],
    places: NDArray[np.float32],
    neighbours: int,
) -> NDArray[np.float32]:
    """Where ``rows`` (N, d) are, (N, k): the mean place of their neighbours, scaled to length 1.

    Args:
        rows: a client's examples, (N, d).
        pool: features of the public pool, (P, d), the same ones.
        places: of the pool's images, (P, k); from the server, so any finite numbers.
        neighbours: how many, found and weighed by cosine; no more than there are images.
    """
    with one_thread():
        near = unit(rows) @ unit(pool).T
        count = min(neighbours, len(pool))
        found = np.argpartition(-near, count - 1, axis=1)[:, :count]
        weights = np.maximum(np.take_along_axis(near, found, axis=1), 0)
        return unit(np.einsum("nk,nkd->nd", weights, places[found]).astype(np.float32))


def unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """``rows`` (N, k), each scaled to length 1."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
