"""What class does a client's data have? From its randomised labels, as well as anybody can tell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def best_guess(
    labels: NDArray[np.integer], keep: float, prior: NDArray[np.floating]
) -> NDArray[np.int64]:
    """The most probable class of each client, given all that it reported: no guesser does better.

    A client of class c reports c with probability β + (1 − β)/C, each other class with (1 − β)/C
    (randomised response). Ties go to the first class.

    Args:
        labels: n clients' reports, m each, of classes below C, (n, m).
        keep: β, the probability with which a label is not randomised, in [0, 1].
        prior: how probable the C classes are beforehand, (C,).

    Returns:
        (n,).
    """
    if not 0 <= keep <= 1:
        raise ValueError(f"keep={keep}: must lie in [0, 1]")
    classes = len(prior)
    counts = np.stack([np.bincount(row, minlength=classes) for row in labels])
    lie = (1 - keep) / classes
    with np.errstate(divide="ignore"):
        # With β = 1 a single report decides; a large finite number stands for ∞.
        weight = min(np.log(keep + lie) - np.log(lie), 1e6)
        return np.argmax(weight * counts + np.log(prior), axis=1)
