"""What the cells of a table's columns are: numbers, classes, or whose a row is.

One rule for every reader, whatever file the column came from:

* A *label*. Text that is a canonical number (``0``, ``0.0``) is that number; ``True`` and ``False``
  are 1 and 0 where all labels are booleans or 0 and 1; everything else (``01`` too) is text. The
  classes are the values that are found, numbers in their order, or those that a user names.
* An *owner's id* is text: exactly as written, or the digits of a whole number.
* A *number* must be right to the last digit that counts. Whatever 32 bits would turn into something
  else is refused: whole numbers from 2²⁴ on, which are ids or time stamps more often than
  measurements, and real numbers that differ by less than their rounding.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.examples import DataError

_FRACTION = re.compile(r"[+-]?(\d+\.\d*|\.\d+)")
_NUMBER = re.compile(rf"[+-]?\d+|{_FRACTION.pattern}")


def owner_ids(values: Sequence[Any], name: str, source: object) -> list[str]:
    """The ids in column ``name`` as text: exactly as written, or the digits of a whole number.

    ``source`` is for errors, whose rows are counted from 0.

    Raises:
        DataError: an id is missing, or the column holds real numbers (also as text) or other
            values, of which two may be one owner or one of them two.
    """
    ids = []
    for row, value in enumerate(values):
        place = f"{source}: column {name!r}, row {row} (from 0)"
        if is_missing(value):
            raise DataError(f"{place}: has no owner's id; add it, or leave the row out")
        if isinstance(value, float | np.floating):
            raise DataError(f"{place}: {value} is a real number; write owners' ids as text")
        if not isinstance(value, str | int | np.integer):
            kind = type(value).__name__
            raise DataError(f"{place}: an owner's id is text or a whole number, not a {kind}")
        ids.append(str(value))
    if any(map(_FRACTION.fullmatch, ids)) and all(map(_NUMBER.fullmatch, ids)):
        raise DataError(
            f"{source}: column {name!r} holds real numbers; write owners' ids as whole numbers or "
            "as text"
        )
    return ids


def is_missing(value: object) -> bool:
    """Whether a cell is empty: null, no number (NaN), no time (NaT), or text of spaces alone."""
    if isinstance(value, str):
        return not value.strip()
    if value is None:
        return True
    try:
        return bool(value != value)
    except ValueError:  # of an array
        return False


def number_owners(ids: Sequence[str]) -> NDArray[np.int64]:
    """Each row's owner as a number from 0, in the order of the sorted ids (N,)."""
    numbers = {owner: number for number, owner in enumerate(sorted(set(ids)))}
    return np.array([numbers[owner] for owner in ids], np.int64)


_CANONICAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_BOOLEANS = {"True": "1", "TRUE": "1", "true": "1", "False": "0", "FALSE": "0", "false": "0"}
_BITS = {"0", "1", *_BOOLEANS}
_MOST = 1000

Places = Callable[[int], str]
Numbered = tuple[NDArray[np.int64], tuple[str, ...]]


def number_classes(
    values: Sequence[Any], place: Places, classes: Sequence[str | int] | None
) -> Numbered:
    """The number of each label's class (N,), and the classes' names in the order of their numbers.

    Args:
        values: the labels, text or typed, of all parts of a data set.
        place: where a row is, for errors.
        classes: the values in the order of their numbers, or names for 0, 1, ... where those are
            the labels; None: the values found, sorted.

    Raises:
        ValueError: ``classes`` names one twice.
        DataError: a label is empty, of an unknown kind or not among ``classes``, or there are
            more than 1,000 classes that nobody has named.
    """
    names = _names(values, place)
    if classes is None:
        names = _as_bits(names)
        order = _sorted(set(names))
        if len(order) > _MOST:
            raise DataError(
                f"{place(0)}: the labels have {len(order):,} different values; if all of these are "
                "classes, name them (dataset.classes); if not, name the column that holds them"
            )
    else:
        order, names = _given(classes, names)
    numbers = {name: number for number, name in enumerate(order)}
    for row, name in enumerate(names):
        if name not in numbers:
            raise DataError(f"{place(row)}: class {name!r} is not among dataset.classes={order}")
    return np.array([numbers[name] for name in names], np.int64), tuple(order)


def number_declared(
    values: Sequence[Any],
    place: Places,
    classes: Sequence[str | int] | None,
    declared: Sequence[str],
) -> Numbered:
    """The same of labels 0, 1, ... whose names the data declare: all of them are classes.

    ``classes`` holds these names, or numbers.
    """
    for row, value in enumerate(values):
        if is_missing(value) or not 0 <= int(value) < len(declared):
            raise DataError(f"{place(row)}: it has an empty label; add it, or leave the row out")
    if classes is None:
        return np.array(values, np.int64), tuple(declared)
    if all(str(name) in declared for name in classes):
        return number_classes([declared[int(value)] for value in values], place, classes)
    if all(_CANONICAL.fullmatch(str(name)) for name in classes):
        return number_classes(values, place, classes)
    raise DataError(
        f"dataset.classes={list(classes)}: the data declare {list(declared)}; use these"
    )


def require_labels(values: Sequence[Any], part: str) -> None:
    """DataError where every label is -1, which stands for a label that is kept secret."""
    if len(values) and {str(value).strip() for value in values} <= {"-1", "-1.0"}:
        raise DataError(f"{part}: has no labels (all are -1); set dataset.test=validation")


def _names(values: Sequence[Any], place: Places) -> list[str]:
    known: dict[tuple[type, Any], str] = {}
    names = []
    for row, value in enumerate(values):
        if is_missing(value):
            raise DataError(f"{place(row)}: it has an empty label; add it, or leave the row out")
        key = (type(value), value)
        if key not in known:
            known[key] = _name(value, row, place)
        names.append(known[key])
    return names


def _name(value: Any, row: int, place: Places) -> str:
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return str(value)
    if isinstance(value, float | np.floating | Decimal) and np.isfinite(float(value)):
        return _number(format(Decimal(str(value)), "f"))
    if not isinstance(value, str):
        raise DataError(
            f"{place(row)}: a label is text, a number or a boolean, not {value} "
            f"({type(value).__name__}); turn it into text"
        )
    text = value.strip()
    if _CANONICAL.fullmatch(text):
        return _number(text)
    return text


def _number(text: str) -> str:
    """A number as text, the same however many zeros follow its point."""
    shortest = text
    if "." in text:
        shortest = text.rstrip("0").rstrip(".")
    if shortest == "-0":
        return "0"
    return shortest


def _as_bits(names: Sequence[str]) -> list[str]:
    """``names`` with 1 and 0 for booleans, where all are either."""
    if not set(names) <= _BITS:
        return list(names)
    return [_BOOLEANS.get(name, name) for name in names]


def _sorted(names: set[str]) -> list[str]:
    if all(map(_CANONICAL.fullmatch, names)):
        return sorted(names, key=Decimal)
    return sorted(names)


def _given(classes: Sequence[str | int], names: list[str]) -> tuple[list[str], list[str]]:
    """``classes`` as names, and ``names`` in the same words where they are numbers of classes."""
    order = _names(classes, lambda row: f"classes={list(classes)}")
    if set(order) | set(names) <= _BITS:
        order = _as_bits(order)
        names = _as_bits(names)
    if len(set(order)) != len(order):
        raise ValueError(f"classes={order}: must not name a class twice")
    if any(_CANONICAL.fullmatch(name) or name in _BOOLEANS for name in order):
        return order, names
    numbers = {str(number): name for number, name in enumerate(order)}
    bits = _as_bits(names)
    if set(bits) <= set(numbers):
        names = [numbers[name] for name in bits]
    return order, names


_LARGEST_WHOLE = 2**24
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")
_COMMA = re.compile(r"\s*[+-]?[0-9.]*,[0-9]+\s*")
_AS_NUMBERS = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
# of the largest value; of the range of a column
_NOISE = 1e-12
_VISIBLE = 1e-3


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
    return bool(texts) and all(text in _AS_NUMBERS for text in texts)


def _is_number(text: str) -> bool:
    """Whether Python reads it as a number; it would also take 1_000."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _of_text(values: Sequence[Any], place: str) -> list[float]:
    if all(isinstance(value, str) for value in values) and _are_booleans(values):
        return [_AS_NUMBERS[value] for value in values]
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
