"""CSV files: rows of text for every reader, and labelled images as pixels or as names of files.

Read by Python's own ``csv`` and not by pandas, which fills short rows up, numbers columns of the
same name, cuts long rows or takes their first field for an index: here a file is read to the letter
or refused, and errors name the file, the line and the column.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.examples import DataError
from murmur.learning.data.files import unreadable

LABEL = "label"
FILENAME = "filename"
_PACKED: Mapping[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_QUOTED = re.compile(r'"[^"]*"')
_LONGEST_FIELD = 2**31 - 1  # of the csv module; it would refuse long texts


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a CSV file with a header, of which one column is ``label``.

    Attributes:
        path: the file.
        lines: the line of the file on which each row ends.
        labels: each row's label, as it is written.
        files: each row's picture file; empty where the table holds pixels.
        pixels: uint8, shape (rows, pixel columns); of no rows where the table names files.
    """

    path: Path
    lines: tuple[int, ...]
    labels: tuple[str, ...]
    files: tuple[Path, ...]
    pixels: NDArray[np.uint8]


def names_files(path: Path) -> bool:
    """Whether the CSV file at ``path`` names picture files; otherwise it holds pixels.

    Raises:
        DataError: the file cannot be read or its header is wrong.
    """
    with open_csv(path) as (header, _):
        return FILENAME in _labelled(path, header)


def read_table(path: Path) -> Table:
    """Reads a CSV file (``open_csv``) with a column ``label`` and either form of image.

    Either one more column ``filename`` (a relative name starts from the CSV file's folder), or
    any number of columns with integers in 0..255. A first column without a name, which pandas
    writes, is left out.

    Raises:
        DataError: the file is missing, is not such a table or has no rows.
    """
    lines = []
    labels = []
    files = []
    pixels = []
    with open_csv(path) as (header, rows):
        columns = _labelled(path, header)
        label_at = header.index(LABEL)
        places = [header.index(name) for name in columns]
        for line, fields in rows:
            lines.append(line)
            labels.append(fields[label_at])
            seen = [fields[place] for place in places]
            if columns == [FILENAME]:
                files.append(path.parent / seen[0])
            else:
                pixels.append(_pixels(path, line, columns, seen))
    if not lines:
        raise DataError(f"{path} has a header but no rows; add some")
    flat = np.frombuffer(b"".join(pixels), dtype=np.uint8)
    return Table(
        path, tuple(lines), tuple(labels), tuple(files), flat.reshape(len(pixels), len(columns))
    )


def shaped(path: Path, pixels: NDArray[np.uint8], shape: Sequence[int] | None) -> NDArray[np.uint8]:
    """Rows of pixels as images (N, C, H, W), in channel, row, column order.

    Args:
        path: the table's file, for the error.
        pixels: shape (N, pixel columns).
        shape: (C, H, W); None: one channel, square.

    Raises:
        ValueError: ``shape`` does not fit the number of columns.
    """
    columns = pixels.shape[1]
    side = math.isqrt(columns)
    wanted: tuple[int, ...] = (1, side, side)
    if shape is not None:
        wanted = tuple(shape)
    if len(wanted) != 3 or math.prod(wanted) != columns:
        raise ValueError(
            f"shape={shape}: must be [channels, height, width] with a product of {columns}, the "
            f"number of pixel columns in {path}"
        )
    return pixels.reshape(len(pixels), *wanted)


@contextmanager
def open_csv(path: Path) -> Iterator[tuple[list[str], Iterator[tuple[int, list[str]]]]]:
    """The header, and an iterator over (line number, fields) of the rows that are not blank.

    UTF-8, packed or not; commas, or, where the header has none, semicolons or tabs. Names and
    fields are what the file says, to the letter.

    Raises:
        DataError: the file cannot be read, a name stands twice, a row is longer or shorter than
            the header, or quotes are not closed.
    """
    unpack = _PACKED.get(path.suffix.lower(), open)
    csv.field_size_limit(_LONGEST_FIELD)
    try:
        with unpack(path, "rt", newline="", encoding="utf-8-sig") as file:
            separator = _separator(file.readline())
        with unpack(path, "rt", newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True, delimiter=separator)
            header = next(reader, [])
            if not header or len(set(header)) != len(header):
                raise _wrong(path, 1, f"the header {header[:9]}; it must name each column once")
            yield header, _rows(path, reader, len(header))
    except (csv.Error, UnicodeDecodeError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8 ({error}); convert it") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _separator(line: str) -> str:
    """What separates the names of the header ``line``."""
    bare = _QUOTED.sub("", line)
    return next((separator for separator in ",;\t" if separator in bare), ",")


def _rows(path: Path, reader: Any, width: int) -> Iterator[tuple[int, list[str]]]:
    for fields in reader:
        if fields and len(fields) != width:
            raise _wrong(path, reader.line_num, f"{len(fields)} fields, the header has {width}")
        if fields:
            yield reader.line_num, fields


def _labelled(path: Path, header: Sequence[str]) -> list[str]:
    """The columns beside the label, without the index that pandas writes."""
    columns = [name for name in header[not header[0] :] if name != LABEL]
    if LABEL not in header or not columns:
        raise _wrong(path, 1, f"the header {list(header[:9])}; it must have a column {LABEL!r}")
    if "" in columns:
        raise _wrong(path, 1, "a column without a name that is not the first")
    if FILENAME in columns and len(columns) != 1:
        raise _wrong(path, 1, f"more columns than {LABEL} and {FILENAME}")
    return columns


def _pixels(path: Path, line: int, columns: Sequence[str], fields: Sequence[str]) -> bytes:
    try:
        return bytes(map(int, fields))
    except ValueError:
        column, field = next(
            (column, field)
            for column, field in zip(columns, fields, strict=True)
            if not _is_byte(field)
        )
        raise _wrong(path, line, f"{column} = {field!r}, which is no integer in 0..255") from None


def _is_byte(field: str) -> bool:
    try:
        return 0 <= int(field) <= 255
    except ValueError:
        return False


def _wrong(path: Path, line: int, what: str) -> DataError:
    return DataError(f"{path}, line {line}: it has {what}; correct the file")
