"""Rows of CSV files, as text.

Python's own ``csv`` reads them and not pandas, which fills short rows up, numbers columns of the
same name, and cuts long rows or takes their first field for an index: here a file is read to the
letter or refused.
"""

import bz2
import csv
import gzip
import lzma
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from murmur.learning.data.blanks import STRICT, Blanks
from murmur.learning.data.cells import nfc
from murmur.learning.data.examples import DataError
from murmur.learning.data.file_errors import unreadable, wrong_row

_PACKED: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_QUOTED = re.compile(r'"[^"]*"')
_MAX_FIELD_CHARACTERS = 2**31 - 1  # of the csv module, which would refuse long texts


@contextmanager
def open_csv(
    path: Path, blanks: Blanks = STRICT
) -> Iterator[tuple[list[str], Iterator[tuple[int, list[str]]]]]:
    """The header, and an iterator over (line number, fields) of the rows that are not empty.

    UTF-8, packed or not; commas, or, where the header has none, semicolons or tabs. Names (in
    NFC) and fields are what the file says, to the letter.

    Args:
        path: the file.
        blanks: notes rows that are longer or shorter than the header, or whose quotes are not
            closed; their fields are empty. Bytes that are no UTF-8 are then ``\ufffd``.

    Raises:
        DataError: the file cannot be read, a name stands twice, a row is longer or shorter than
            the header, or quotes are not closed.
    """
    unpack = _PACKED.get(path.suffix.lower(), open)
    csv.field_size_limit(_MAX_FIELD_CHARACTERS)
    how = {"newline": "", "encoding": "utf-8-sig"}
    if blanks.allowed:
        how["errors"] = "replace"
    try:
        with unpack(path, "rt", **how) as file:
            separator = _separator(file.readline())
        with unpack(path, "rt", **how) as file:
            lines = _Lines(file)
            reader = csv.reader(lines, strict=True, delimiter=separator)
            header = list(map(nfc, next(reader, [])))
            if not header or len(set(header)) != len(header):
                raise wrong_row(path, 1, f"the header {header[:9]}; it must name each column once")
            yield header, _rows(path, lines, reader, len(header), blanks)
    except (csv.Error, UnicodeDecodeError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8 ({error}); convert it") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _separator(line: str) -> str:
    """Separator of the names of the header ``line``: commas, else semicolons or tabs."""
    bare = _QUOTED.sub("", line)
    return next((separator for separator in ",;\t" if separator in bare), ",")


class _Lines:
    """The lines of a file, of which those since ``begin`` can be read again but for the first."""

    def __init__(self, file: Iterable[str]) -> None:
        self._file = iter(file)
        self._again: deque[str] = deque()
        self._taken: list[str] = []
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._file)
        self._taken.append(line)
        self.number += 1
        return line

    def begin(self) -> None:
        """Forget the lines so far: a row begins."""
        self._taken.clear()

    def give_back(self) -> None:
        """Let all lines of a row but its first be read again: a quote has taken in other rows."""
        again = self._taken[1:]
        self._again.extendleft(reversed(again))
        self.number -= len(again)


def _rows(
    path: Path, lines: _Lines, reader: Any, width: int, blanks: Blanks
) -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of each row; a broken one is its first line, and has empty fields."""
    row = 0
    while True:
        lines.begin()
        try:
            fields = next(reader, None)
            if fields is None:
                return
            if fields and len(fields) != width:
                said = f"{len(fields)} fields, the header has {width}"
                raise wrong_row(path, lines.number, said)
        except (csv.Error, DataError) as error:
            blanks.add(row, error)
            lines.give_back()
            fields = [""] * width
        if fields:
            yield lines.number, fields
            row += 1
