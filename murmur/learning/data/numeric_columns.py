"""Columns of numbers, booleans, texts that write numbers, and lists of numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data import cells
from murmur.learning.data.blanks import STRICT, Blanks
from murmur.learning.data.examples import DataError
from murmur.learning.data.frames import Images, cells_of, kind_of

if TYPE_CHECKING:
    import pandas

_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")
_COMMA = re.compile(r"\s*[+-]?[0-9.]*,[0-9]+\s*")


def numbers_of(column: pandas.Series, place: str, blanks: Blanks = STRICT) -> Images:
    """The numbers of a column (N, F, 1, 1): F is 1, or the length of the lists that it holds.

    Text is read as numbers with a decimal point, and True and False as 1 and 0.

    Args:
        column: numbers, booleans, text or lists of numbers.
        place: file and column, for errors.
        blanks: notes rows that hold none; no lists then.

    Raises:
        DataError: a value is missing, no finite number, or not to be had in 32 bits.
    """
    kind = kind_of(column)
    missing = column.isna().to_numpy()
    blanks.add_all(missing, lambda row: _no_number(None, row, place))
    if missing.any() and kind in (str, bool, int, float, Decimal):
        column = column.where(~missing, "0" if kind is str else kind(0))
    if kind is str:
        wide = _of_text(column, place, blanks)[:, None]
    elif kind is list:
        wide = _of_lists(column, place)
    elif kind is Decimal:
        wide = np.array(list(map(float, column)))[:, None]
    elif kind in (bool, int, float):
        wide = column.to_numpy()[:, None]
    else:
        blanks.add_all(~missing, lambda row: _no_number(column.iloc[row], row, place))
        wide = np.zeros((len(column), 1))
    infinite = ~np.all(np.isfinite(wide), axis=1)
    blanks.add_all(
        infinite,
        lambda row: DataError(f"{place}: has no finite number in row {row} (from 0)"),
    )
    if infinite.any():
        wide = np.where(infinite[:, None], 0, wide)
    return cells.narrow(wide, place, blanks)[:, :, None, None]


def _of_text(column: pandas.Series, place: str, blanks: Blanks) -> NDArray[np.float64]:
    """The numbers that texts write, (N,), and 1 and 0 where all are booleans.

    Where a row may be blank, each boolean is 1 or 0.

    Raises:
        DataError: a text is no number, or a whole one is too large for 32 bits.
    """
    booleans = column.isin(list(cells.BOOLEANS))
    if booleans.all():
        return np.array([float(cells.BOOLEANS[text]) for text in column])
    if blanks.allowed and booleans.any():
        column = column.replace(cells.BOOLEANS)
    try:
        numbers = column.astype("double[pyarrow]").to_numpy()
    except ValueError:  # spaces and signs, which Python reads and Arrow does not, or no number
        numbers = np.zeros(len(column))
        for row, text in enumerate(column):
            with blanks.of(row):
                numbers[row] = _python_number(text, row, place)
    large = (np.abs(numbers) > cells.MAX_EXACT_INTEGER) & np.isfinite(numbers)
    for row in np.flatnonzero(large).tolist():
        if _WHOLE.fullmatch(column.iloc[row]):
            blanks.add(row, cells.too_large(place))
    return numbers


def _python_number(text: str, row: int, place: str) -> float:
    """A number with a decimal point as Python reads it; DataError where it is none."""
    if not is_number(text):
        raise _no_number(text, row, place)
    return float(text)


def joined_lists(
    frame: pandas.DataFrame, width: int, place: str, blanks: Blanks
) -> NDArray[np.float32]:
    """Each row's numbers side by side (N, width, 1, 1), lists and single ones, row by row."""
    found = np.zeros((len(frame), width), np.float32)
    columns = [cells_of(frame[name]) for name in frame]
    for row, values in enumerate(zip(*columns, strict=True)):
        with blanks.of(row):
            numbers = np.concatenate([np.ravel(value) for value in values])
            if numbers.dtype.kind not in "biuf" or not np.isfinite(numbers).all():
                raise DataError(f"{place}: has no finite number in row {row} (from 0)")
            if len(numbers) != width:
                raise DataError(f"{place}: has {len(numbers)} numbers in row {row}, not {width}")
            found[row] = cells.narrow(numbers[None], place)[0]
    return found[:, :, None, None]


def _of_lists(column: pandas.Series, place: str) -> NDArray[Any]:
    """Lists of numbers, (N, F); DataError where they differ in length or hold something else."""
    rows = []
    for row, value in enumerate(column.tolist()):
        numbers = np.ravel(value)
        if numbers.dtype.kind not in "biuf":
            raise _no_number(value, row, place)
        rows.append(numbers)
    if len(set(map(len, rows))) != 1:
        raise DataError(f"{place}: holds lists of different lengths; make them equal")
    return np.stack(rows)


def are_mostly_numbers(texts: Sequence[str]) -> bool:
    """True if half of the cells with any text hold numbers, or all hold booleans.

    A decimal comma counts: such a column is refused as numbers, and not read as words.
    """
    written = [text for text in texts if not cells.is_missing(text)]
    numbers = sum(is_number(text) or _COMMA.fullmatch(text) is not None for text in written)
    return 0 < len(written) <= 2 * numbers or (len(written) > 0 and {*written} <= {*cells.BOOLEANS})


def is_number(text: str) -> bool:
    """True if Python reads the text as a number, but for underscores as in 1_000."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _no_number(value: Any, row: int, place: str) -> DataError:
    if cells.is_missing(value):
        return DataError(
            f"{place}: has no finite number in row {row} (from 0); fill it, or leave it out"
        )
    if isinstance(value, str) and _COMMA.fullmatch(value):
        return DataError(
            f"{place}: has {value!r} in row {row} (from 0); write numbers with a decimal point and "
            "without commas"
        )
    return DataError(
        f"{place} holds more than numbers: {str(value)[:40]!r} in row {row} (from 0); leave it out "
        "(dataset.inputs), or turn it into numbers"
    )
