"""Was this example in the training data? From a model's losses on it.

A threshold on the loss knows that what was trained on has less of it (Yeom, Giacomelli, Fredrikson
and Jha, "Privacy risk in machine learning", CSF 2018): ``confidence`` itself is the score.
``likelihood_ratio`` compares each example with itself, by shadow models that were trained with and
without it (LiRA: Carlini et al., "Membership inference attacks from first principles", IEEE S&P
2022).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_MIN_SPREAD = 1e-3  # spread of a group of shadows that happen to agree


def confidence(losses: NDArray[np.floating]) -> Floats:
    """φ = ln(p/(1 − p)) of the true class's probability p = e^−loss; nearly normal over models.

    Any shape. Losses of 0, which mean p = 1 in floating point, give the largest finite φ.
    """
    losses = np.maximum(np.asarray(losses, np.float64), 1e-12)
    return -losses - np.log(-np.expm1(-losses))


def likelihood_ratio(
    target: NDArray[np.floating], shadows: NDArray[np.floating], inside: NDArray[np.bool_]
) -> Floats:
    """Logarithms of p(φ | trained on it) / p(φ | not), by normal laws for each example, (n,).

    Args:
        target: φ of the model under attack, (n,).
        shadows: φ of k models that the adversary trained on data of the same kind, (k, n).
        inside: which examples each of them was trained on, (k, n); at least two with and two
            without each example. The laws' spreads are pooled over examples, which is better
            where shadows are few.

    Raises:
        ValueError: an example has fewer than two shadows on a side.
    """
    with_it, without = inside.sum(axis=0), (~inside).sum(axis=0)
    if min(with_it.min(), without.min()) < 2:
        raise ValueError("shadows: each example needs two models with it and two without it")
    logs = []
    for group, count in ((inside, with_it), (~inside, without)):
        mean = np.where(group, shadows, 0).sum(axis=0) / count
        squares = np.where(group, (shadows - mean) ** 2, 0).sum() / (count - 1).sum()
        spread = max(float(np.sqrt(squares)), _MIN_SPREAD)
        logs.append(-0.5 * ((target - mean) / spread) ** 2 - np.log(spread))
    return logs[0] - logs[1]
