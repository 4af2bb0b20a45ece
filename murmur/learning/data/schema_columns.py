"""Columns of which a public schema says the values or the range."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from murmur.learning.data import cells
from murmur.learning.data.blanks import Blanks
from murmur.learning.data.examples import DataError
from murmur.learning.data.frames import Images, cells_of, kind_of
from murmur.learning.data.numeric_columns import are_mostly_numbers, is_number

if TYPE_CHECKING:
    import pandas

_MAX_FLOAT32 = float(np.finfo(np.float32).max)


def _column(numbers: Sequence[float]) -> Images:
    return np.array(numbers, np.float32)[:, None, None, None]


def places_in(entries: Sequence[Any], column: pandas.Series, place: str, blanks: Blanks) -> Images:
    """Where each cell of ``column`` stands in the schema's list ``entries``; −1: it does not.

    A whole number counts as such, whether its column is typed 7 or 7.0. A cell of whatever kind has
    its place or has none.

    Raises:
        DataError: the column is of another kind than the list, no cell is in it, or one would be
            but for YAML, where no row may be blank.
    """
    values = list(map(str, entries))
    places = {cells.key_of(value): number for number, value in enumerate(values)}
    places |= {cells.nfc(value): number for number, value in enumerate(values)}
    texts = [None if cell is None else cells.nfc(str(cell)) for cell in cells_of(column)]
    known = {
        text: places.get(text, places.get(cells.key_of(text), -1))
        for text in dict.fromkeys(texts)
        if text is not None
    }
    if not blanks.allowed:
        _require_quotes(known, entries, place)
        _require_kind(column, all(map(is_number, values)), any(map(is_number, values)), place)
        _require_a_member(known, values, place)
    return _column([-1 if text is None else known[text] for text in texts])


def _require_quotes(known: Mapping[str, int], entries: Sequence[Any], place: str) -> None:
    """DataError where YAML has changed words of a schema's list, which the column then lacks.

    A single cell is no reason: half of the list's numbers stand in no cell, but are what YAML makes
    of cells.

    Args:
        known: where each text of the column stands in the list; −1: it does not.
        entries: the list, as YAML has read it.
        place: file and column, for the error.
    """
    found = set(known.values())
    numbers = {cells.key_of(e): at for at, e in enumerate(entries) if not isinstance(e, str)}
    if not numbers:
        return
    words = {cells.unquoted(text): text for text, at in known.items() if at < 0}
    changed = [number for number, at in numbers.items() if number in words and at not in found]
    if changed and 2 * len(changed) >= len(numbers):
        word = words[changed[0]]
        raise DataError(
            f"{place}: the schema lists {changed[0]}, as which YAML reads {word} without quotes; "
            f"write '{word}' with the quotes (dataset.schema)"
        )


def _require_a_member(known: Mapping[str, int], values: Sequence[str], place: str) -> None:
    """DataError where the column holds something and nothing of it is in the schema's list."""
    written = [text for text in known if text.strip()]
    if written and max(known.values()) < 0:
        raise DataError(
            f"{place}: no cell is in the schema's list ({cells.listed(values, 5)}); the column "
            f"holds {cells.listed(sorted(written), 5)}; mend the schema (dataset.schema) or the "
            "column"
        )


def numbers_in_range(
    low: float, high: float, column: pandas.Series, place: str, blanks: Blanks
) -> Images:
    """The numbers of ``column``; what is none is a number below the schema's range.

    Raises:
        DataError: the column does not hold numbers, where no row may be blank.
    """
    if not blanks.allowed:
        _require_kind(column, True, True, place)
    return _column([_or_below(cell, low, high) for cell in cells_of(column)])


def _require_kind(column: pandas.Series, needed: bool, allowed: bool, place: str) -> None:
    """Refuse a column of another kind than its schema says.

    Single cells that the schema does not know are no reason: they have bins of their own. A column
    of text holds numbers if half of what is written in it are numbers.

    Args:
        column: as read.
        needed: it must hold numbers.
        allowed: it may hold numbers.
        place: file and column, for the error.
    """
    kind = kind_of(column)
    if kind not in (str, bool, int, float, Decimal):
        raise DataError(
            f"{place}: holds {kind.__name__}, the schema says values or a range; mend the schema "
            "(dataset.schema) or the column"
        )
    written = [cell for cell in cells_of(column) if not cells.is_missing(cell)]
    if not written:
        return
    are_numbers = kind is not str or are_mostly_numbers([str(cell) for cell in written])
    if needed and not are_numbers:
        raise DataError(
            f"{place}: the schema says numbers, the column holds {str(written[0])[:40]!r}; mend "
            "the schema (dataset.schema) or the column"
        )
    if are_numbers and not allowed:
        raise DataError(
            f"{place}: the schema lists words, the column holds numbers ({written[0]}); mend the "
            "schema (dataset.schema) or the column"
        )


def _or_below(cell: Any, low: float, high: float) -> float:
    """The number in ``cell``, in 32 bits; what is none is a number below the range."""
    try:
        number = float(cell)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isfinite(number):
        return min(max(number, -_MAX_FLOAT32), _MAX_FLOAT32)
    return low - (high - low)
