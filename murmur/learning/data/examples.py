"""Labelled images and data sets, as plain arrays, and the one error that reading them raises.

Below them is what takes rows out of a data set at random: the public pool, the test set, validation
examples. Where it is known whose rows are, whole owners are taken: nobody then has rows on both
sides.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from murmur.checks import require_integer, require_number
from murmur.learning.objective import CLASSIFICATION, Objective
from murmur.random import experiment_rng

Rows = NDArray[np.int64]


class DataError(Exception):
    """Data is missing or unreadable. The message says which file, what is wrong, what to do."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled images.

    Attributes:
        images: float32, shape (N, C, H, W), pixels in [0, 1] or any other finite features. May be
            memory-mapped and then read-only; ``take`` gives a writable copy.
        labels: classes, int64, shape (N,); of tasks without classes float32, (N,) or (N, L)
            (``murmur.learning.objective``).

    Raises:
        ValueError: a shape or type differs from the above.
    """

    images: NDArray[np.float32]
    labels: NDArray[Any]

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != np.float32:
            raise ValueError(
                f"images={self.images.dtype}{self.images.shape}: must be float32 (N, C, H, W)"
            )
        is_number = self.labels.dtype == np.float32 and self.labels.ndim in (1, 2)
        shape = self.labels.shape[:1] if is_number else self.labels.shape
        if shape != self.images.shape[:1] or not (is_number or self.labels.dtype == np.int64):
            raise ValueError(
                f"labels={self.labels.dtype}{self.labels.shape}: must be int64, "
                f"shape ({len(self.images)},)"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def strata(self) -> Rows:
        """Each example's class (N,); all are of one where labels are no classes."""
        if self.labels.dtype == np.int64:
            return self.labels
        return np.zeros(len(self.labels), np.int64)

    def take(self, indices: NDArray[np.integer[Any]]) -> "Examples":
        """The examples at ``indices`` (integers, in that order), copied into memory."""
        return Examples(self.images[indices], self.labels[indices])


@dataclass(frozen=True)
class LocalData:
    """One client's examples: rows ``indices`` of the process's resident arrays.

    Attributes:
        images: (N, C, H, W), or features.
        labels: (N,), or distributions (N, classes).
        indices: (n,), which of them are the client's.
        sources: what features were computed from, (N, ...); None: ``images`` are as they were read.
    """

    images: NDArray[np.float32]
    labels: NDArray[Any]
    indices: NDArray[np.int64]
    sources: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def contents(self) -> Iterator[bytes]:
        """Bytes of each record, in the order of ``indices``; equal records are equal bytes.

        Of the sources, not of features: their last bits may depend on the rows beside them.
        """
        inputs = self.images if self.sources is None else self.sources
        for row in self.indices:
            yield inputs[row].tobytes() + self.labels[row].tobytes()


@dataclass(frozen=True, eq=False)
class Dataset:
    """A train and a test set over the same classes; ``test`` may be empty (a client's own data).

    Attributes:
        name: what to call it in a report.
        train: the examples to split into the public pool and the clients' shares.
        test: the examples that only evaluation sees.
        num_classes: labels lie in [0, num_classes); of another task the outputs of a model.
        input_shape: (C, H, W) of one image.
        owners: whose each train example is, in 0..; None where the data do not say.
        split: whether pool, validation and test set take whole owners, or rows of any.
        classes: names of the classes in the order of their numbers, or of several labels; None:
            their numbers.
        notes: what was left out of the data, and why.
        test_owners: whose each test example is, in 0..; None: nothing says so, or nobody asks.
        texts: whether inputs are numbers of words, of which none is more than another.
        blanks: train examples that could not be read, and why: zeros of class 0 in their place.
        named: whether the user or the data have named the classes; if not, they are those found.
        digests: of what the reader alone knows, or knows for less (``digests.digests_of``).
        columns: names of a table's columns that a model sees, in their order.
        owner_ids: ids of the owners of train examples, in the order of their numbers. Like the
            examples themselves they are for the owner of the data, and nothing writes them.
        test_owner_ids: ids of the owners of test examples.
        objective: the task that the labels are of.

    Raises:
        ValueError: a label or an image's shape is outside the above.
    """

    name: str
    train: Examples
    test: Examples
    num_classes: int
    input_shape: tuple[int, int, int]
    owners: NDArray[np.int64] | None = None
    split: Literal["owners", "rows"] = "owners"
    classes: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    test_owners: NDArray[np.int64] | None = None
    texts: bool = False
    blanks: Mapping[int, str] = field(default_factory=dict)
    named: bool = False
    digests: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    owner_ids: tuple[str, ...] = ()
    test_owner_ids: tuple[str, ...] = ()
    objective: Objective = CLASSIFICATION

    def __post_init__(self) -> None:
        if self.split not in ("owners", "rows"):
            raise ValueError(f"split={self.split}: must be owners or rows")
        if self.owners is not None and len(self.owners) != len(self.train):
            raise ValueError(f"owners={self.owners.shape}: must be one for each train example")
        for part, examples in (("train", self.train), ("test", self.test)):
            if examples.images.shape[1:] != self.input_shape:
                raise ValueError(
                    f"{part}.images={examples.images.shape}: must be (N, C, H, W) with "
                    f"(C, H, W) = {self.input_shape}"
                )
            labels = examples.labels
            if not self.objective.has_classes:
                self.objective.require_labels(labels, self.num_classes)
            elif len(labels) and not (labels.min() >= 0 and labels.max() < self.num_classes):
                raise ValueError(
                    f"{part}.labels={labels.min()}..{labels.max()}: must lie in "
                    f"[0, num_classes={self.num_classes})"
                )

    @property
    def num_strata(self) -> int:
        """How many classes examples may be of; 1 where labels are no classes (``strata``)."""
        return self.num_classes if self.objective.has_classes else 1

    @property
    def together(self) -> NDArray[np.int64] | None:
        """Train examples of the same number stay together when the set is split; None: none do."""
        if self.split == "owners":
            return self.owners
        return None


def take_out(
    name: str,
    total: int,
    count: int,
    rng: np.random.Generator,
    owners: Rows | None = None,
    labels: Rows | None = None,
) -> tuple[Rows, Rows]:
    """``count`` of ``total`` rows, and the rest: sorted indices, disjoint, together all.

    With ``owners`` (total,) nobody has rows on both sides. The first owners in a random order are
    then taken out, of those who have no more than ``count`` rows: as many as come nearest to that.
    With ``labels`` (total,) the rest keeps a row of each class, or an owner who has one.

    Raises:
        ValueError: no owner has so few rows, or none can be taken without taking the last row of a
            class; the message names the setting ``name``.
    """
    taken, rest = _taken_out(name, total, count, rng, owners)
    if labels is None:
        return taken, rest
    return keep_classes(name, taken, rest, labels, rng, owners)


def keep_classes(
    name: str,
    taken: Rows,
    rest: Rows,
    labels: Rows,
    rng: np.random.Generator,
    owners: Rows | None = None,
) -> tuple[Rows, Rows]:
    """``taken`` and ``rest``, to which one row goes back of each class that it would lack.

    Args:
        name: of the setting that says how many are taken, for the error.
        taken: rows for evaluation, sorted.
        rest: rows for training, sorted.
        labels: the class of each row, of both.
        rng: which row goes back, of several of a class.
        owners: whose each row is; all rows of an owner then go back together.

    Raises:
        ValueError: all rows would go back.
    """
    back = np.zeros(len(labels), dtype=bool)
    for label in np.setdiff1d(labels[taken], labels[rest]):
        if (labels[back] == label).any():  # with another class's owner
            continue
        row = rng.choice(taken[labels[taken] == label])
        back[row if owners is None else owners == owners[row]] = True
    if len(taken) and back[taken].all():
        raise ValueError(
            f"{name}: training keeps rows of each class, and then none can be held out; ask for "
            "more or for 0, or where owners are kept whole set dataset.split=rows"
        )
    every = np.sort(np.concatenate([rest, np.flatnonzero(back)]))
    return taken[~back[taken]], every


def _taken_out(
    name: str, total: int, count: int, rng: np.random.Generator, owners: Rows | None
) -> tuple[Rows, Rows]:
    """``take_out`` without a look at classes."""
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


def numbered_owners(ids: Sequence[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Each row's owner as a number from 0, (N,), and the owners' ids in that order, sorted."""
    known = sorted(set(ids))
    numbers = {owner: number for number, owner in enumerate(known)}
    return np.array([numbers[owner] for owner in ids], np.int64), tuple(known)


def require_apart(ids: Iterable[str], test: Iterable[str]) -> None:
    """DataError where somebody has rows both for training and in the test set."""
    both = sorted(set(ids) & set(test))
    if both:
        raise DataError(
            f"dataset.test: {len(both)} owners have rows in the training and in the test set (such "
            f"as {both[0]!r}); take them out of one, or set dataset.split=rows"
        )


def split_test(
    labels: Rows, test_fraction: float, split_seed: int, owners: Rows | None = None
) -> tuple[Rows, Rows]:
    """Rows for training and ``test_fraction`` of all for evaluation, both sorted; see ``take_out``.

    Raises:
        ValueError: the fraction is not in [0, 1], or leaves no row for training.
    """
    require_number("test_fraction", test_fraction, 0, 1)
    total = len(labels)
    count = round(test_fraction * total)
    name = f"test_fraction={test_fraction}"
    if count >= total:
        raise ValueError(f"{name}: leaves none of the {total} examples for training; lower it")
    rng = experiment_rng(split_seed, "test split")
    test, train = take_out(name, total, count, rng, owners, labels)
    return train, test


def split_owners(
    owners: Rows, share: float, seed: int, labels: Rows | None = None
) -> tuple[Rows, Rows]:
    """Rows for training and those of ``share`` of the ``owners`` (N,), both sorted.

    With ``labels`` (N,) training keeps an owner of each class.

    Raises:
        ValueError: the share is not in (0, 1), or leaves nobody on a side.
    """
    everybody = np.unique(owners)
    count = 0
    if 0 < share < 1:
        count = round(share * len(everybody))
    if not 0 < count < len(everybody):
        raise ValueError(
            f"test_owners={share}: must be a share in (0, 1) that leaves owners on both sides; "
            f"there are {len(everybody)}"
        )
    rng = experiment_rng(seed, "test owners")
    chosen = rng.permutation(everybody)[:count]
    taken = np.isin(owners, chosen)
    train, test = np.flatnonzero(~taken), np.flatnonzero(taken)
    if labels is not None:
        test, train = keep_classes(f"test_owners={share}", test, train, labels, rng, owners)
    return train, test


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
    size: int,
    rng: np.random.Generator,
    owners: NDArray[np.int64] | None = None,
    labels: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Splits the train set's indices into the public pool and the rest, at random.

    Only the pool's images are used; its labels must not be read.

    Args:
        num_examples: the train set's size.
        size: how many examples the pool gets. 0: no pool.
        rng: the experiment's randomness.
        owners: whose each example is, shape (num_examples,): the pool then takes whole owners, and
            about ``size`` examples. None: it is not known.
        labels: of which the private rows keep one of each class, for a split whose labels are used
            (validation examples). None: labels decide nothing.

    Returns:
        ``(public, private)``: sorted, disjoint, together all of ``range(num_examples)``.

    Raises:
        ValueError: ``size`` leaves no private example, or is less than any owner has.
    """
    require_integer("size", size, 0)
    if size >= num_examples:
        raise ValueError(
            f"size={size}: must leave at least one of the {num_examples} train examples private; "
            f"give 0 to {num_examples - 1}"
        )
    public, private = take_out(f"size={size}", num_examples, size, rng, owners, labels)
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
