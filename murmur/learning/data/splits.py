"""Taking rows out of a data set at random: the public pool, the test set, validation examples.

Where it is known whose rows are, whole owners are taken: nobody then has rows on both sides.
"""

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


def split_owners(owners: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """Rows for training and those of ``share`` of the ``owners`` (N,), both sorted.

    Raises:
        ValueError: the share is not in (0, 1), or leaves nobody on a side.
    """
    everybody = np.unique(owners)
    count = round(share * len(everybody))
    if not (0 < share < 1 and 0 < count < len(everybody)):
        raise ValueError(
            f"test_owners={share}: must be a share in (0, 1) that leaves owners on both sides; "
            f"there are {len(everybody)}"
        )
    chosen = experiment_rng(seed, "test owners").permutation(everybody)[:count]
    taken = np.isin(owners, chosen)
    return np.flatnonzero(~taken), np.flatnonzero(taken)


def few_of_each(owners: Rows, most: int, seed: int) -> Rows:
    """Sorted rows, ``most`` of each of ``owners`` (N,) at most, at random; ValueError below 1."""
    if most < 1:
        raise ValueError(f"rows_per_owner={most}: must be at least 1, or null")
    order = experiment_rng(seed, "rows of owners").permutation(len(owners))
    sorted_rows = order[np.argsort(owners[order], kind="stable")]
    _, starts, counts = np.unique(owners[sorted_rows], return_index=True, return_counts=True)
    rank = np.arange(len(owners)) - np.repeat(starts, counts)
    return np.sort(sorted_rows[rank < most])


def split_public(
    num_examples: int,
    size: int | float,
    rng: np.random.Generator,
    owners: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Splits the train set's indices into the public pool and the rest, at random.

    Only the pool's images are used; its labels must not be read.

    Args:
        num_examples: the train set's size.
        size: how many examples the pool gets; an integer counts, a float in [0, 1) is a fraction
            of ``num_examples``, rounded to the nearest. 0: no pool.
        rng: the experiment's randomness.
        owners: whose each example is, shape (num_examples,): the pool then takes whole owners, and
            about ``size`` examples. None: it is not known.

    Returns:
        ``(public, private)``: sorted, disjoint, together all of ``range(num_examples)``.

    Raises:
        ValueError: ``size`` is neither, leaves no private example, or is less than any owner has.
    """
    if isinstance(size, bool) or not isinstance(size, int | float | np.integer | np.floating):
        raise ValueError(f"size={size}: must be a number of examples or a fraction in [0, 1)")
    if isinstance(size, float | np.floating):
        if not 0 <= size < 1:
            raise ValueError(
                f"size={size}: a fraction must lie in [0, 1); write a number of examples as an "
                "integer"
            )
        count = round(float(size) * num_examples)
    else:
        count = int(size)
    if not 0 <= count < num_examples:
        raise ValueError(
            f"size={size}: must leave at least one of the {num_examples} train examples private; "
            f"give 0 to {num_examples - 1}, or a smaller fraction"
        )
    public, private = take_out(f"size={size}", num_examples, count, rng, owners)
    require_disjoint(public, private)
    return public, private


def require_disjoint(public: NDArray[np.int64], private: NDArray[np.int64]) -> None:
    """Raises ValueError if an index is both public and private, or twice in one of them.

    A private example in the public pool would leave its owner without any noise at all, so this
    is checked where the split is made and may be checked again where it is used.
    """
    combined = np.concatenate([public, private])
    if len(np.unique(combined)) != len(combined):
        shared = np.intersect1d(public, private)
        raise ValueError(
            f"public={len(public)} examples: {len(shared)} are private too, or some are named "
            "twice; split the train set with split_public"
        )
