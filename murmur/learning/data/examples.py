"""Labelled images and data sets, as plain arrays, and the one error that reading them raises."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

_SHOWN = 10  # names of classes in a note


class DataError(Exception):
    """Data is missing or unreadable. The message says which file, what is wrong, what to do."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled images.

    Attributes:
        images: float32, shape (N, C, H, W), pixels in [0, 1] or any other finite features. May be
            memory-mapped and then read-only; ``take`` gives a writable copy.
        labels: int64, shape (N,).

    Raises:
        ValueError: a shape or type differs from the above.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != np.float32:
            raise ValueError(
                f"images={self.images.dtype}{self.images.shape}: must be float32 (N, C, H, W)"
            )
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != np.int64:
            raise ValueError(
                f"labels={self.labels.dtype}{self.labels.shape}: must be int64, "
                f"shape ({len(self.images)},)"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: NDArray[np.integer[Any]]) -> Examples:
        """The examples at ``indices`` (integers, in that order), copied into memory."""
        return Examples(self.images[indices], self.labels[indices])


@dataclass(frozen=True)
class LocalData:
    """One client's examples: rows ``indices`` of the process's resident arrays."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A train and a test set over the same classes; ``test`` may be empty (a client's own data).

    Attributes:
        name: what to call it in a report.
        train: the examples to split into the public pool and the clients' shares.
        test: the examples that only evaluation sees.
        num_classes: labels lie in [0, num_classes).
        input_shape: (C, H, W) of one image.
        owners: whose each train example is, in 0..; None where the data do not say.
        split: whether pool, validation and test set take whole owners, or rows of any.
        classes: names of the classes in the order of their numbers; None: their numbers.
        notes: what a user should hear of how the data were read.
        test_owners: whose each test example is, in 0..; None: nothing says so, or nobody asks.
        texts: whether inputs are numbers of words, of which none is more than another.

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

    def __post_init__(self) -> None:
        if self.split not in ("owners", "rows"):
            raise ValueError(f"split={self.split}: must be owners or rows")
        if self.owners is not None and self.owners.shape != self.train.labels.shape:
            raise ValueError(f"owners={self.owners.shape}: must be one for each train example")
        for part, examples in (("train", self.train), ("test", self.test)):
            if examples.images.shape[1:] != self.input_shape:
                raise ValueError(
                    f"{part}.images={examples.images.shape}: must be (N, C, H, W) with "
                    f"(C, H, W) = {self.input_shape}"
                )
            labels = examples.labels
            if len(labels) and not (labels.min() >= 0 and labels.max() < self.num_classes):
                raise ValueError(
                    f"{part}.labels={labels.min()}..{labels.max()}: must lie in "
                    f"[0, num_classes={self.num_classes})"
                )

    @property
    def together(self) -> NDArray[np.int64] | None:
        """Train examples of the same number stay together when the set is split; None: none do."""
        if self.split == "owners":
            return self.owners
        return None


def described(data: Dataset, *more: str) -> Dataset:
    """``data`` with notes on how it was read: classes, owners, and ``more``."""
    if data.classes is None:
        names = ""
    else:
        names = f" ({', '.join(data.classes[:_SHOWN])}"
    if names:
        names += ", …)" if len(data.classes or ()) > _SHOWN else ")"
    said = [f"{data.num_classes} classes{names}"]
    if data.owners is not None:
        said.append(f"{len(np.unique(data.owners))} owners of training rows")
    return replace(data, notes=(*data.notes, *said, *more))
