"""The weight that an answer or a sum claims, against what its clients can have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from murmur.learning.codec import MalformedError

Weigh = Callable[[int], int]


@dataclass(frozen=True)
class Weights:
    """How much each client counts in a sum, from ``least`` to ``greatest``.

    Weights are public and declared before any data are read: one that follows the data is data.
    """

    of: Weigh
    least: int = 1
    greatest: int = 1


def require_weight(weight: object, answered: Sequence[int], weigh: Weigh) -> int:
    """``weight`` if these clients can have it together, else MalformedError."""
    if type(weight) is not int:
        raise MalformedError(f"weight={weight!r:.40}: must be an integer")
    right = sum(weigh(client) for client in answered)
    if weight != right:
        raise MalformedError(f"weight={weight}: by these clients' public sizes it is {right}")
    return weight
