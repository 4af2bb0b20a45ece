"""Label columns of tasks without classes: one of numbers, or several of 0 and 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.blanks import STRICT, Blanks
from murmur.learning.data.examples import DataError
from murmur.learning.data.frames import kind_of
from murmur.learning.data.numeric_columns import joined_lists, numbers_of
from murmur.learning.objective import Objective

if TYPE_CHECKING:
    import pandas


def objective_of(task: str, label_range: Any, labels: Any = None) -> Objective:
    """The task of a reader's settings.

    Args:
        task: its name.
        label_range: the public range of a regression's labels, [low, high].
        labels: the columns of several labels.

    Raises:
        ValueError: the task is unknown, or a setting is missing or of another task.
    """
    if label_range is not None and task != "regression":
        raise ValueError(f"label_range={label_range}: is for task=regression; set it to null")
    if labels is not None and task != "multilabel":
        raise ValueError(f"labels={labels}: is for task=multilabel; name one column (label)")
    if task != "regression":
        return Objective(kind=task)  # type: ignore[arg-type]
    ends = list(label_range) if isinstance(label_range, Sequence) else []
    if len(ends) != 2 or not all(isinstance(end, int | float) for end in ends):
        raise ValueError(
            f"label_range={label_range}: task=regression needs the range of the labels, [lowest, "
            "highest], as it is known in public; nothing of it is read from the data"
        )
    return Objective("regression", float(ends[0]), float(ends[1]))


def number_labels(
    column: pandas.Series, place: str, blanks: Blanks = STRICT
) -> NDArray[np.float32]:
    """The numbers of a regression's label column, (N,); arguments and errors as ``numbers_of``.

    Raises:
        DataError: also where a cell holds several numbers.
    """
    if blanks.allowed and kind_of(column) is list:
        return joined_lists(column.to_frame(), 1, place, blanks)[:, 0, 0, 0]
    found = numbers_of(column, place, blanks)
    if found.shape[1] != 1:
        raise DataError(f"{place}: holds lists of numbers; a label is one number")
    return found[:, 0, 0, 0]


def binary_labels(
    frame: pandas.DataFrame, names: Sequence[str], place: str, blanks: Blanks = STRICT
) -> NDArray[np.float32]:
    """The labels of columns of 0 and 1, or of booleans, (N, L).

    Args:
        frame: the table.
        names: the columns, one for each label.
        place: where the table is from, for errors.
        blanks: notes rows that hold anything else.

    Raises:
        DataError: a cell is neither 0 nor 1.
    """
    found = np.zeros((len(frame), len(names)), np.float32)
    for label, name in enumerate(names):
        at = f"{place}: column {name!r}"
        found[:, label] = number_labels(frame[name], at, blanks)
        _require_binary(found[:, label], at, blanks)
    return found


def _require_binary(values: NDArray[np.float32], place: str, blanks: Blanks) -> None:
    """DataError where one of ``values`` (N,) of ``place`` is neither 0 nor 1."""
    blanks.add_all(
        (values != 0) & (values != 1),
        lambda row: DataError(
            f"{place}: has {values[row]:g} in row {row} (from 0); a label of task=multilabel is 0 "
            "or 1"
        ),
    )
