"""Do two messages of different rounds come from the same client? From bits that agree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def alike(
    earlier: NDArray[np.number], later: NDArray[np.number]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Likeness of each client's two messages, and of messages of two different clients.

    Correlations after the round's mean is taken off: what all clients share tells nothing.

    Args:
        earlier: the messages of n clients in one round, (n, d).
        later: of the same clients, in the same order, in another, (n, d).

    Returns:
        (n,) of the same client; (n(n−1),) of different ones.
    """
    if earlier.shape != later.shape or earlier.ndim != 2 or len(earlier) < 2:
        raise ValueError(
            f"messages {earlier.shape} and {later.shape}: must be of the same 2 or more clients"
        )
    both = _standardised(earlier) @ _standardised(later).T
    return np.diag(both), both[~np.eye(len(both), dtype=np.bool_)]


def _standardised(messages: NDArray[np.number]) -> NDArray[np.float64]:
    centred = messages.astype(np.float64) - messages.mean(axis=0)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    return centred / np.where(lengths > 0, lengths, 1)
