"""Rounds of clipped gradients on fixed features: what both halves agree on.

A client sends one gradient a round and takes no local step:

    φ(x) = (b, f(x))
    G_i = n_i^(−p) Σ_x φ(x) (e_y − softmax(Wᵀφ(x) + τ·log π_i))ᵀ
    g_i = clip_C( flat_q(G_i) )
    W ← W + (L/T)/N · (Σ g_i + noise)

Symbols: f = the run's features (``conf/features``), b = ``constant``, n_i = a client's examples,
p = ``balance``, π_i = the client's own class frequencies, τ = ``logit_adjustment``, q =
``flatten``, C = the clipping norm, L = ``length``, that of all steps together, T = rounds, N =
clients of a round. The model is linear: its bias is b·W₀, the row of W that the constant meets.

With τ = 1 a client's gradient tells its classes apart and says nothing of how often it has each
(logit adjustment: Menon et al., ICLR 2021; with a client's own frequencies Zhang et al., ICML
2022). With q > 0 a gradient's weaker directions count for more beside its strongest. Both are
computed from the client's own data and the model, before the clipping: they cost no privacy.

For a given L, without momentum, the noise that ends in W has deviation L·σ₁/N, where σ₁ is that of
one round that has the whole budget, whatever T is. T is free, L and C are the knobs.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from murmur.learning.objective import CLASSIFICATION, Objective
from murmur.learning.process import one_thread


def gradient(
    features: NDArray[np.floating],
    labels: NDArray[Any],
    weights: NDArray[np.float64],
    constant: float,
    balance: float,
    adjustment: float = 0.0,
    objective: Objective = CLASSIFICATION,
) -> NDArray[np.float64]:
    """One client's G: the direction in which its likelihood grows.

    Args:
        features: f of the client's n examples, (n, d).
        labels: their classes, (n,), or what another task has.
        weights: W, (1 + d, C); its first row meets the constant.
        constant: b, at least 0.
        balance: p in [0, 1]: 0 adds the examples up, 1 takes their mean.
        adjustment: τ, at least 0; 0 in tasks without classes.
        objective: the task: its targets and its link stand for e_y and softmax.

    Returns:
        (1 + d, C); 0 of a client without examples.
    """
    if not len(labels):
        return np.zeros_like(weights)
    with one_thread():
        rows = features.astype(np.float64)
        logits = constant * weights[0] + rows @ weights[1:]
        if objective.has_classes:
            logits += adjustment * log_frequencies(labels, weights.shape[1])
            residuals = -softmax(logits, axis=1)
            residuals[np.arange(len(labels)), labels] += 1
        else:
            targets = objective.targets(labels, weights.shape[1])
            residuals = targets - objective.means(logits)
        slopes = np.vstack([constant * residuals.sum(axis=0), rows.T @ residuals])
    return slopes / len(labels) ** balance


def log_frequencies(labels: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """Log π (C,) of a client's ``labels`` (n,): π_k = (n_k + 1)/(n + C), never 0."""
    counts = np.bincount(labels, minlength=classes)
    return np.log((counts + 1) / (len(labels) + classes))


def flattened(slopes: NDArray[np.floating], flatten: float) -> NDArray[np.float64]:
    """Flat_q: U Σ^(1−q) Vᵀ of G = U Σ Vᵀ, scaled to be as long as G.

    Args:
        slopes: G, (..., 1 + d, C), of one client or of many.
        flatten: q in [0, 1): 0 leaves G as it is; towards 1 all of its directions count alike.

    Returns:
        (..., 1 + d, C); 0 where G is.
    """
    wide = slopes.astype(np.float64)
    if not flatten:
        return wide
    with one_thread():
        squares, axes = np.linalg.eigh(wide.swapaxes(-1, -2) @ wide)
        floor = np.maximum(_MIN_RELATIVE_VARIANCE * squares[..., -1:], np.finfo(float).tiny)
        factors = np.maximum(squares, floor) ** (-flatten / 2)
        flat = wide @ ((axes * factors[..., None, :]) @ axes.swapaxes(-1, -2))
    lengths = np.linalg.norm(wide, axis=(-2, -1), keepdims=True)
    reached = np.linalg.norm(flat, axis=(-2, -1), keepdims=True)
    return flat * (lengths / np.maximum(reached, np.finfo(float).tiny))


def start_from_names(names: NDArray[np.float32], scale: float) -> NDArray[np.float64]:
    """W₀ (1 + d, C) from the classes' names: s·(e_c − mean e)/‖e_c − mean e‖, without a constant.

    Args:
        names: e_c, the features of one line for each class, (C, d).
        scale: s, the length of each class's weights.

    Raises:
        ValueError: a name has the mean features of all, so that nothing tells it apart.
    """
    away = names.astype(np.float64) - names.mean(axis=0, dtype=np.float64)
    lengths = np.linalg.norm(away, axis=1, keepdims=True)
    if not np.all(lengths > 1e-9):
        raise ValueError("names: have the same features; write one line for each class")
    return np.vstack([np.zeros(len(names)), (scale * away / lengths).T])


_MIN_RELATIVE_VARIANCE = (
    1e-8  # of the largest σ²: directions that are shorter are not raised further
)
