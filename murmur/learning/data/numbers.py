"""Columns of numbers as the 32-bit numbers that models read: right to the last digit that counts.

Whatever 32 bits would turn into something else is refused: whole numbers from 2²⁴ on, which are ids
or time stamps more often than measurements, and real numbers that differ by less than their
rounding.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.examples import DataError
from murmur.learning.data.owners import is_missing

_LARGEST_WHOLE = 2**24
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")
_COMMA = re.compile(r"\s*[+-]?[0-9.]*,[0-9]+\s*")
_BOOLEANS = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
_NOISE, _VISIBLE = 1e-12, 1e-3  # of the largest value; of the range of a column


def column_of_numbers(values: Sequence[Any], place: str) -> NDArray[np.float32]:
    """The numbers of a column (N, F): F is 1, or the length of the lists that it holds.

    Text is read as numbers with a decimal point, and True and False as 1 and 0.

    Args:
        values: numbers, booleans, text or lists of numbers.
        place: file and column, for errors.

    Raises:
        DataError: a value is missing, no finite number, or not to be had in 32 bits.
    """
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biuf":
        wide = values[:, None]
    elif any(isinstance(value, str) for value in values):
        wide = np.array(_of_text(values, place))[:, None]
    else:
        wide = _of_objects(values, place)
    _require_finite(wide, place)
    return narrow(wide, place)


def narrow(wide: NDArray[Any], place: str) -> NDArray[np.float32]:
    """Finite numbers (N, F) with 32 bits; DataError where these hold something else."""
    if wide.dtype.kind in "iu" and wide.size:
        large = int(wide.max()) > _LARGEST_WHOLE or int(wide.min()) < -_LARGEST_WHOLE
        if large:
            raise _too_large(place)
    with np.errstate(over="ignore", under="ignore"):
        found = wide.astype(np.float32)
    if wide.dtype != np.float64 or not wide.size:
        return found
    if not np.isfinite(found).all():
        raise DataError(f"{place}: holds numbers beyond 3.4e38; scale it, or leave it out")
    rounding = np.abs(found - wide).max(axis=0)
    span = np.ptp(wide, axis=0)
    differs = span > _NOISE * np.abs(wide).max(axis=0)
    if (differs & (rounding > _VISIBLE * span)).any():
        raise DataError(
            f"{place}: its values differ by less than 32-bit numbers can show; subtract the least "
            "of them and scale the rest, or leave it out (dataset.inputs)"
        )
    return found


def are_mostly_numbers(texts: Sequence[str]) -> bool:
    """Whether at least half of the cells with any text hold numbers."""
    said = [text for text in texts if not is_missing(text)]
    numbers = sum(_is_number(text) or _COMMA.fullmatch(text) is not None for text in said)
    return 0 < len(said) <= 2 * numbers or _are_booleans(said)


def _are_booleans(texts: Sequence[str]) -> bool:
    return bool(texts) and all(text in _BOOLEANS for text in texts)


def _is_number(text: str) -> bool:
    """Whether Python reads it as a number; it would also take 1_000."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _of_text(values: Sequence[Any], place: str) -> list[float]:
    if all(isinstance(value, str) for value in values) and _are_booleans(values):
        return [_BOOLEANS[value] for value in values]
    numbers = []
    for row, value in enumerate(values):
        if not isinstance(value, str) or not _is_number(value):
            raise _no_number(value, row, place)
        number = float(value)
        if abs(number) > _LARGEST_WHOLE and _WHOLE.fullmatch(value):
            raise _too_large(place)
        numbers.append(number)
    return numbers


def _of_objects(values: Sequence[Any], place: str) -> NDArray[Any]:
    rows = []
    for row, value in enumerate(values):
        if is_missing(value) or isinstance(value, datetime.date):
            raise _no_number(value, row, place)
        cell = np.ravel(float(value) if isinstance(value, Decimal) else value)
        if cell.dtype.kind not in "biuf":
            raise _no_number(value, row, place)
        rows.append(cell)
    if len({len(row) for row in rows}) != 1:
        raise DataError(f"{place}: holds lists of different lengths; make them equal")
    return np.stack(rows)


def _require_finite(wide: NDArray[Any], place: str) -> None:
    finite = np.isfinite(wide).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        raise DataError(f"{place}: has no finite number in row {row} (from 0)")


def _no_number(value: Any, row: int, place: str) -> DataError:
    if is_missing(value):
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


def _too_large(place: str) -> DataError:
    return DataError(
        f"{place}: holds whole numbers beyond {_LARGEST_WHOLE:,}, which 32-bit numbers would "
        "round; leave it out (dataset.inputs) where they are ids or times, else scale it"
    )
