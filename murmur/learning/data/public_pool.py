"""The public pool: examples that everybody may see, split off before any client gets a share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.splits import take_out


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
