"""Owners' ids in a column, exactly as written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from murmur.learning.data import cells
from murmur.learning.data.examples import DataError
from murmur.learning.data.frames import cells_of, kind_of

if TYPE_CHECKING:
    import pandas

_REAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+)")
_ANY_NUMBER = re.compile(rf"[+-]?\d+|{_REAL.pattern}")


def owner_ids(column: pandas.Series, place: str) -> list[str]:
    """Owners' ids as text: exactly as written, or the digits of a whole number.

    Args:
        column: of text, whole numbers or booleans.
        place: file and column, for errors.

    Raises:
        DataError: an id is missing, or the column holds real numbers (also as text) or other
            values, of which two may be one owner or one of them two.
    """
    ids = cells_of(column)
    for row, value in enumerate(ids):
        if cells.is_missing(value):
            raise DataError(
                f"{place}, row {row} (from 0): has no owner's id; add it, or leave the row out"
            )
    kind = kind_of(column)
    if kind is float:
        raise DataError(
            f"{place}, row 0 (from 0): {ids[0]} is a real number; write owners' ids as text"
        )
    if kind not in (str, int, bool):
        raise DataError(
            f"{place}, row 0 (from 0): an owner's id is text or a whole number, not a "
            f"{kind.__name__}"
        )
    texts = list(map(str, ids))
    distinct = set(texts)
    if any(map(_REAL.fullmatch, distinct)) and all(map(_ANY_NUMBER.fullmatch, distinct)):
        raise DataError(
            f"{place} holds real numbers; write owners' ids as whole numbers or as text"
        )
    return texts
