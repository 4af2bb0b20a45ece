"""Rows that cannot be read: an error, or a blank record in the row's place.

A researcher's data set is refused for its first bad row, so that she mends it. An owner's data are
read row by row: one record must not decide what becomes of the others, so a row that no reader can
read is a blank record, zeros of class 0, and its owner is told.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Blanks:
    """Notes the rows that cannot be read, or refuses the first of them.

    Args:
        allowed: whether such a row becomes a blank record.

    Attributes:
        rows: why each of them was not read, by its number from 0.
    """

    def __init__(self, allowed: bool = False) -> None:
        self.allowed = allowed
        self.rows: dict[int, str] = {}

    def add(self, row: int, error: Exception) -> None:
        """Note ``row``; raises ``error`` where no row may be blank."""
        if not self.allowed:
            raise error
        self.rows.setdefault(row, " ".join(str(error).split()) or type(error).__name__)

    def add_all(self, bad: NDArray[np.bool_], error: Callable[[int], Exception]) -> None:
        """Note the rows that are ``bad`` (N,); ``error``: what is wrong with one of them."""
        for row in np.flatnonzero(bad).tolist():
            self.add(row, error(row))

    @contextmanager
    def of(self, row: int) -> Iterator[None]:
        """Note ``row`` where what is done meanwhile raises; libraries may raise anything."""
        try:
            yield
        except Exception as error:
            self.add(row, error)

    def clear(self, *columns: NDArray[Any]) -> None:
        """Put zeros into each of ``columns`` (N, ...) where a row is blank."""
        rows = list(self.rows)
        for column in columns:
            if rows:
                column[rows] = 0


STRICT = Blanks()
"""Refuses the first row that cannot be read."""
