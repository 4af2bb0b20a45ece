"""Labelled images from a CSV file: pixels in the table, or the names of picture files.

Errors name the file, the line and the column.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from learning.data.archives import unreadable
from learning.data.examples import DataError

LABEL = "label"
FILENAME = "filename"


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a CSV file with a header, of which one column is ``label``.

    Attributes:
        path: the file.
        lines: the line of the file on which each row ends.
        labels: each row's label, never empty.
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
    with _opened(path) as (header, _):
        return FILENAME in header


def read_table(path: Path) -> Table:
    """Reads a CSV file: UTF-8, commas, a header with ``label`` and either form of image.

    Either one more column ``filename`` (a relative name starts from the CSV file's folder), or
    any number of columns with integers in 0..255.

    Raises:
        DataError: the file is missing, is not such a table or has no rows.
    """
    lines, labels, files, pixels = [], [], [], []
    with _opened(path) as (header, rows):
        at = header.index(LABEL)
        columns = header[:at] + header[at + 1 :]
        for line, fields in rows:
            if len(fields) != len(header):
                raise _wrong(path, line, f"{len(fields)} fields, the header has {len(header)}")
            label = fields.pop(at).strip()
            if not label:
                raise _wrong(path, line, f"an empty {LABEL}")
            lines.append(line)
            labels.append(label)
            if columns == [FILENAME]:
                files.append(path.parent / fields[0])
            else:
                pixels.append(_pixels(path, line, columns, fields))
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
    wanted = (1, side, side) if shape is None else tuple(shape)
    if len(wanted) != 3 or math.prod(wanted) != columns:
        raise ValueError(
            f"shape={shape}: must be [channels, height, width] with a product of {columns}, the "
            f"number of pixel columns in {path}"
        )
    return pixels.reshape(len(pixels), *wanted)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], Iterator[tuple[int, list[str]]]]]:
    """The header, and an iterator over (line number, fields) of the rows that are not blank."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            _check_header(path, header)
            yield header, ((reader.line_num, fields) for fields in reader if fields)
    except OSError as error:
        raise unreadable(path, error) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8 ({error}); convert it") from error


def _check_header(path: Path, header: Sequence[str]) -> None:
    if header.count(LABEL) != 1 or len(set(header)) != len(header) or len(header) < 2:
        raise _wrong(
            path, 1, f"the header {list(header[:4])}…; it must name each column once, one {LABEL}"
        )
    if FILENAME in header and len(header) != 2:
        raise _wrong(path, 1, f"more columns than {LABEL} and {FILENAME}")


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
