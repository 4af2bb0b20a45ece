"""What class statistics release of a client, and what the server makes of their noisy sum.

``moments``: one client's A_i = Σ_c n_c^(−b) Σ_{x∈c} φ(x)(e_c − 1/C)ᵀ, scaled to norm 1.
``posterior``: the linear model that the noisy sum of many A_i and a model of the pool explain best.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from murmur.learning.linear_model import centred
from murmur.learning.process import one_thread


def moments(
    features: NDArray[np.float32], labels: NDArray[np.int64], classes: int, balance: float = 0.5
) -> NDArray[np.float64]:
    """A (d, C) of one client's ``features`` (n, d), of Frobenius norm 1 (0 where they are 0).

    ``balance``: b, how far the client's small classes count as much as its large ones: 0 not at
    all, 1 in full.
    """
    counts = np.bincount(labels, minlength=classes)
    rows = centred(labels, classes) / (counts[labels] ** float(balance))[:, None]
    with one_thread():
        total = features.astype(np.float64).T @ rows
    norm = float(np.linalg.norm(total))
    return total / norm if norm > 0 else total


def posterior(
    total: NDArray[np.float64],
    pool: NDArray[np.float32],
    prior: NDArray[np.float64],
    sigma: float,
    clients: int,
) -> NDArray[np.float64]:
    """W (d, C): ``prior`` W₀, and of ``total`` what the pool does not explain.

    In the eigenbasis g of the pool's second moment the sum is νgW + noise, with ν by least squares.
    Noise of variance s² = σ² + N/(Cd): the mechanism's, and that of ``clients`` vectors of norm 1.
    W − W₀ is taken as Gaussian of variance τ, which is estimated from what is left over the noise.
    """
    with one_thread():
        rows = pool.astype(np.float64)
        scale, axes = np.linalg.eigh(rows.T @ rows / len(rows))
        g, seen, start = np.maximum(scale, 0)[:, None], axes.T @ total, axes.T @ prior
        explained = g * start
        strength = float((seen * explained).sum() / max((explained**2).sum(), 1e-300))
        left = seen - strength * explained
        noise = sigma**2 + clients / total.size
        gain = strength**2 * g**2
        excess = float((left**2 - noise).sum())
        spread = max(0.0, excess / (total.shape[1] * max(float(gain.sum()), 1e-300)))
        step = spread * strength * g / (gain * spread + noise) * left
        return prior + axes @ step
