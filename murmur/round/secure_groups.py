"""Divides a round's cohort into groups; each group has its own secure sum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from murmur.secure_sum import SecureSumSettings


def groups_of(
    cohort: Sequence[int], settings: SecureSumSettings, usual: int, rng: np.random.Generator
) -> list[list[int]]:
    """``settings.groups`` groups of almost the same size, each in increasing order.

    ``usual``: the cohort's size by configuration. Fewer groups where a smaller cohort would leave
    one without the minimum of a usual group.
    """
    count = min(settings.groups, max(1, len(cohort) // settings.least_survivors(usual)))
    clients = np.sort(np.asarray(cohort, np.int64))
    if count > 1:
        rng.shuffle(clients)
    return [sorted(group.tolist()) for group in np.array_split(clients, count)]
