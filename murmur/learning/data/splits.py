"""Taking rows out of a data set at random, as whole owners where it is known whose they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from murmur.common import experiment_rng, require_number

Rows = NDArray[np.int64]


def take_out(
    name: str, total: int, count: int, rng: np.random.Generator, owners: Rows | None = None
) -> tuple[Rows, Rows]:
    """``count`` of ``total`` rows, and the rest: sorted indices, disjoint, together all.

    With ``owners`` (total,) nobody has rows on both sides. The first owners in a random order are
    then taken out, of those who have no more than ``count`` rows: as many as come nearest to that.

    Raises:
        ValueError: no owner has so few rows; the message names the setting ``name``.
    """
    if owners is None:
        order = rng.permutation(total)
        return np.sort(order[:count]), np.sort(order[count:])
    everybody, whose, sizes = np.unique(owners, return_inverse=True, return_counts=True)
    taken = np.zeros(len(everybody), dtype=bool)
    order = rng.permutation(len(everybody))
    small = order[sizes[order] <= count][: len(everybody) - 1]  # somebody must be left
    if len(small):
        beside = np.abs(np.cumsum(sizes[small]) - count)
        taken[small[: int(np.argmin(beside)) + 1]] = True
    elif count:
        raise ValueError(
            f"{name}: owners of rows are kept whole, and none has {count} rows or fewer (the "
            f"fewest: {sizes.min()}); ask for more or for 0, or set dataset.split=rows"
        )
    return np.flatnonzero(taken[whose]), np.flatnonzero(~taken[whose])


def split_test(
    total: int, test_fraction: float, split_seed: int, owners: Rows | None = None
) -> tuple[Rows, Rows]:
    """Rows for training and ``test_fraction`` of all for evaluation, both sorted; see ``take_out``.

    Raises:
        ValueError: the fraction is not in [0, 1], or leaves no row for training.
    """
    require_number("test_fraction", test_fraction, 0, 1)
    count = round(test_fraction * total)
    name = f"test_fraction={test_fraction}"
    if count >= total:
        raise ValueError(f"{name}: leaves none of the {total} examples for training; lower it")
    rng = experiment_rng(split_seed, "test split")
    test, train = take_out(name, total, count, rng, owners)
    return train, test
