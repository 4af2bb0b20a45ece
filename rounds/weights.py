"""The weight that an answer or a sum claims, against what its clients can have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from learning.contribution import MalformedError

Weigh = Callable[[int], int]


def require_weight(weight: object, answered: Sequence[int], weigh: Weigh | None) -> int:
    """``weight`` if these clients can have it together, else MalformedError."""
    if type(weight) is not int:
        raise MalformedError(f"weight={weight!r:.40}: must be an integer")
    if weigh is not None and weight != (right := sum(weigh(client) for client in answered)):
        raise MalformedError(f"weight={weight}: by these clients' public sizes it is {right}")
    return weight
