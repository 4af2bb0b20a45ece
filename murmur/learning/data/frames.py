"""Data frames of CSV and Parquet files, with Arrow's types."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data import cells
from murmur.learning.data.blanks import STRICT, Blanks
from murmur.learning.data.csv_rows import open_csv
from murmur.learning.data.examples import DataError

if TYPE_CHECKING:
    import pandas


_PARQUET = b"PAR1"  # its first bytes
_CSV_BLOCK_ROWS = 1 << 16  # rows of a CSV file that are lists of Python's at a time
Images = NDArray[np.float32]


def arrow_frame(columns: Any) -> pandas.DataFrame:
    """A frame of the columns of a ``pyarrow.Table``, with Arrow's types, which pandas keeps.

    Categories become the values that they stand for, types of an extension what they are stored as.
    An index that pandas has written stays a column.
    """
    import pandas
    import pyarrow

    columns = columns.rename_columns(list(map(cells.nfc, columns.column_names)))
    for place, field in enumerate(columns.schema):
        plain = field.type
        if isinstance(plain, pyarrow.BaseExtensionType):
            plain = plain.storage_type
        if pyarrow.types.is_dictionary(plain):
            plain = plain.value_type
        if plain != field.type:
            columns = columns.set_column(place, field.name, columns[place].cast(plain))
    return columns.to_pandas(types_mapper=pandas.ArrowDtype, ignore_metadata=True)


def kind_of(column: pandas.Series) -> type:
    """The type of a column's cells: int, float, bool, str, dict, list, Decimal, a date, ..."""
    return column.dtype.type


def cells_of(column: pandas.Series) -> list[Any]:
    """The cells as Python's own values, None where there is nothing."""
    return column.to_numpy(dtype=object, na_value=None).tolist()


def missing_packages(setting: str, packages: str) -> ValueError:
    """The refusal of a setting for which packages are missing."""
    return ValueError(f"{setting}: reading it needs {packages}; install it (extra `data`)")


def read_frame(key: str, path: str | None, blanks: Blanks = STRICT) -> pandas.DataFrame:
    """The columns of a CSV or Parquet file, by whose first bytes the two are told apart.

    Args:
        key: of the setting that names it.
        path: the file.
        blanks: notes broken rows of a CSV file.

    Raises:
        ValueError: the extra ``data`` is not installed.
        DataError: there is no file, it cannot be read, or names a column twice.
    """
    try:
        import pandas  # noqa: F401
        import pyarrow.parquet
    except ImportError as error:
        raise missing_packages(f"{key}={path}", "pandas and pyarrow") from error
    if path is None:
        raise DataError(f"dataset.{key}=null: set it to the place where your table lies")
    file = Path(path).expanduser()
    try:
        with file.open("rb") as opened:
            is_parquet = opened.read(len(_PARQUET)) == _PARQUET
        if not is_parquet:
            return csv_frame([file], blanks)
        columns = pyarrow.parquet.read_table(file)
    except (OSError, ValueError) as error:
        raise DataError(f"dataset.{key}={path}: cannot be read ({error})") from error
    names = list(map(cells.nfc, columns.column_names))
    if len(set(names)) != len(names):
        raise DataError(f"dataset.{key}={path}: names a column twice; it has {', '.join(names)}")
    return arrow_frame(columns)


def csv_frame(files: Iterable[str | Path], blanks: Blanks = STRICT) -> pandas.DataFrame:
    """The rows of CSV files, all fields as text; columns by name, those of the first file.

    ``blanks``: notes broken rows, where there is one file.

    Raises:
        DataError: a file cannot be read, or has other columns than the first.
    """
    import pandas
    import pyarrow

    text = pandas.ArrowDtype(pyarrow.string())
    blocks: list[pandas.DataFrame] = []
    for file in files:
        with open_csv(Path(file), blanks) as (header, rows):
            if blocks and set(header) != set(blocks[0]):
                raise DataError(f"{file}: has columns {header}, others have {list(blocks[0])}")
            blocks.append(pandas.DataFrame(columns=header, dtype=text))
            lines = (fields for _, fields in rows)
            while block := list(islice(lines, _CSV_BLOCK_ROWS)):
                blocks.append(pandas.DataFrame(block, columns=header, dtype=text))
    return pandas.concat(blocks, ignore_index=True)
