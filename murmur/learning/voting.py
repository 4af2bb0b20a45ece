"""Choosing public examples by a model's uncertainty, and turning noisy votes into targets."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax


def entropy(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """U = −Σ_j p_j ln p_j of each row of ``logits`` (N, C), in nats, in float64."""
    logs = log_softmax(logits.astype(np.float64), axis=1)
    return -(np.exp(logs) * logs).sum(axis=1)


def draw(utility: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """``count`` distinct indices with P(i) ∝ exp(utility_i), sorted."""
    weights = np.exp(utility - utility.max())
    return np.sort(rng.choice(len(weights), count, replace=False, p=weights / weights.sum()))


def plurality(votes: NDArray, rng: np.random.Generator) -> NDArray[np.float64]:
    """One-hot winners (K, C) of ``votes`` (K, C); ties are broken at random.

    Ties are common in small cohorts, and argmax alone would favour the low classes.
    """
    lots = np.where(votes == votes.max(axis=1, keepdims=True), rng.random(votes.shape), -1.0)
    return np.eye(votes.shape[1])[lots.argmax(axis=1)]


def margin(histogram: NDArray[np.int64]) -> NDArray[np.float64]:
    """Lead of the first over the second class of each row (K, C), in standard errors.

    The difference of two multinomial counts has a variance of at most their sum.
    """
    first = np.sort(histogram, axis=1)[:, -1]
    second = np.sort(histogram, axis=1)[:, -2]
    return (first - second) / np.sqrt(np.maximum(first + second, 1))


def cohort_for_plurality(
    keep: float, categories: int, *, agreement: float = 0.6, runner_up: float = 0.1, z: float = 2.5
) -> int:
    """Clients needed for the plurality of randomised labels to be right, ``z`` standard errors.

    ``keep``: β of the randomiser. ``agreement`` and ``runner_up``: shares of clients whose true
    label is the first and the second most common one.
    """
    noise = (1 - keep) / categories
    first = keep * agreement + noise
    second = keep * runner_up + noise
    lead = first - second
    return math.ceil(z**2 * (first + second - lead**2) / lead**2)
