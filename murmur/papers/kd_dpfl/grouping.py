"""Which clients count as large, from public sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def large_clients(
    sizes: Sequence[int], *, factor: float = 5.0, top_k: int | None = None
) -> tuple[int, ...]:
    """Ids of the large clients, ascending.

    Args:
        sizes: examples of every client, by id.
        factor: large are those with at least ``factor`` times the median of all sizes.
        top_k: instead, the ``top_k`` largest; the lower id first where sizes are equal.

    Raises:
        ValueError: a setting is out of range.
    """
    if top_k is not None:
        if not 0 <= top_k <= len(sizes):
            raise ValueError(f"top_k={top_k}: must lie in 0..{len(sizes)}, the number of clients")
        order = sorted(range(len(sizes)), key=lambda client: (-sizes[client], client))
        return tuple(sorted(order[:top_k]))
    if not factor > 0:
        raise ValueError(f"factor={factor}: must be above 0")
    threshold = factor * float(np.median(sizes))
    return tuple(client for client, size in enumerate(sizes) if size >= threshold)
