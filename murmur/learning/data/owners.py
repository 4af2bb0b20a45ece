"""Whose each row is: a column of ids as text, whatever file or reader it came from."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
