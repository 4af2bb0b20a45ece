"""Data sets in columns: CSV and Parquet files, and Hugging Face's ``datasets``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from murmur.learning.data.columns import Column, Part, Reading
from murmur.learning.data.examples import DataError, Dataset, described
from murmur.learning.data.owners import number_owners
from murmur.learning.data.splits import split_test
from murmur.learning.data.tables import open_csv

SAVED = ("dataset_dict.json", "state.json")  # files by which a folder of save_to_disk is known
_PARQUET = b"PAR1"  # its first bytes
_BLOCK = 1 << 16  # rows

Split = Literal["owners", "rows"]


def table(
    *,
    path: str | None,
    test_path: str | None = None,
    test_fraction: float = 0.2,
    split_seed: int = 0,
    split: Split = "owners",
    **columns: Any,
) -> Dataset:
    """A CSV or Parquet file with a header, and perhaps another for the test set.

    Args:
        path: the file.
        test_path: the test set; None: ``test_fraction`` of the rows.
        test_fraction: share of the rows held out for evaluation, in [0, 1).
        split_seed: which ones; the split depends on nothing else.
        split: whether pool, validation and test set take whole owners, or rows of any.
        columns: see ``murmur.learning.data.columns.Reading``.

    Raises:
        ValueError: a setting is outside its range, or pyarrow is not installed.
        DataError: a file is missing, or has other columns.
    """
    reading, files = Reading(**columns), [_frame("path", path)]
    if test_path is not None:
        files.append(_frame("test_path", test_path))
    parts = reading.read(files, path, ("", f"{test_path}"))
    return _dataset("table", parts, test_fraction, split_seed, split)


def huggingface(
    *,
    path: str | None,
    name: str | None = None,
    train: str = "train",
    test: str | None = "test",
    test_fraction: float = 0.2,
    split_seed: int = 0,
    split: Split = "owners",
    **columns: Any,
) -> Dataset:
    """A data set of Hugging Face's ``datasets``: a local folder, or a name on the hub.

    Args:
        path: a folder of ``save_to_disk`` or with files that ``load_dataset`` knows, or a name.
        name: of a configuration, where the data set has several.
        train: the split for training.
        test: the split for evaluation; None: ``test_fraction`` of ``train``.
        test_fraction: share of the rows held out for evaluation, in [0, 1).
        split_seed: which ones; the split depends on nothing else.
        split: whether pool, validation and test set take whole owners, or rows of any.
        columns: see ``murmur.learning.data.columns.Reading``.

    Raises:
        ValueError: a setting is outside its range, or ``datasets`` is not installed.
        DataError: the data set cannot be had, or lacks a split or a column.
    """
    reading, found = Reading(**columns), _hub(path, name)
    wanted = [train] if test is None else [train, test]
    for part in wanted:
        if part not in found:
            raise DataError(f"dataset.path={path}: has no split {part!r}; it has {list(found)}")
    parts = [found[part] for part in wanted]
    if reading.client is not None and any(part.guessed for part in parts):
        raise DataError(
            f"dataset.path={path}: its CSV files are read by guessing types, which changes owners' "
            "ids (007 becomes 7); download them and use dataset=table"
        )
    names = [f"split {part!r}" for part in wanted]
    read = reading.read(parts, path, names, parts[0].declared(reading.label))
    return _dataset(Path(str(path)).name, read, test_fraction, split_seed, split)


def _dataset(
    name: str, parts: list[Part], test_fraction: float, split_seed: int, split: Split
) -> Dataset:
    examples, ids, classes = parts[0].examples, parts[0].owners, parts[0].classes
    owners = None if ids is None else number_owners(ids)
    train, test = examples, parts[-1].examples
    if len(parts) == 1:
        together = owners if split == "owners" else None
        rows, held_out = split_test(len(examples), test_fraction, split_seed, together)
        train, test = examples.take(rows), examples.take(held_out)
        owners = None if owners is None else np.unique(owners[rows], return_inverse=True)[1]
    elif ids is not None and split == "owners":
        _require_apart(ids, parts[1].owners or [])
    shape = examples.images.shape[1:]
    found = Dataset(name, train, test, max(2, len(classes)), shape, owners, split, classes)
    left_out = parts[0].left_out
    return described(found, *(f"column {name!r}, an index, is left out" for name in left_out))


def _require_apart(ids: Sequence[str], test: Sequence[str]) -> None:
    """DataError where somebody has rows both for training and in the test set."""
    both = sorted(set(ids) & set(test))
    if both:
        raise DataError(
            f"dataset.test: {len(both)} owners have rows in the training and in the test set (such "
            f"as {both[0]!r}); take them out of one, or set dataset.split=rows"
        )


class _Columns(Mapping[str, Column]):
    """The columns of an Arrow table; ids, labels and numbers as they were stored."""

    guessed = False

    def __init__(self, table: Any) -> None:
        self.table = table

    def __iter__(self) -> Iterator[str]:
        return iter(self.table.column_names)

    def __len__(self) -> int:
        return len(self.table.column_names)

    def __getitem__(self, name: str) -> Column:
        import pyarrow

        column, kind = self.table[name], self.table[name].type
        is_number = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)
        if is_number and not column.null_count:
            return column.to_numpy()
        return column.to_pylist()

    def declared(self, label: str) -> None:
        """A table declares no names of classes."""


class _Split(Mapping[str, Column]):
    """The columns of one split of Hugging Face's; ``guessed``: whether types were guessed."""

    def __init__(self, rows: Any, guessed: bool) -> None:
        self.rows, self.guessed = rows, guessed

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows.column_names)

    def __len__(self) -> int:
        return len(self.rows.column_names)

    def __getitem__(self, name: str) -> Column:
        import datasets

        rows = self.rows
        if isinstance(rows.features[name], datasets.Image):
            rows = rows.cast_column(name, datasets.Image(decode=False))
        return rows[name][:]

    def declared(self, label: str) -> Sequence[str] | None:
        """The names of the labels 0, 1, ..., if the data set has any."""
        return getattr(self.rows.features.get(label), "names", None)


def _frame(key: str, path: str | None) -> _Columns:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(
            f"{key}={path}: tables need the package pyarrow; install it (extra `data`)"
        ) from error
    if path is None:
        raise DataError(f"dataset.{key}=null: set it to the place where your table lies")
    file = Path(path).expanduser()
    try:
        with file.open("rb") as opened:
            is_parquet = opened.read(len(_PARQUET)) == _PARQUET
        table = pyarrow.parquet.read_table(file) if is_parquet else _csv([file])
    except (OSError, ValueError) as error:
        raise DataError(f"dataset.{key}={path}: cannot be read ({error})") from error
    names = table.column_names
    if len(set(names)) != len(names):
        raise DataError(f"dataset.{key}={path}: names a column twice; it has {', '.join(names)}")
    return _Columns(table)


def _csv(files: Sequence[Path]) -> Any:
    """The rows of CSV files, all fields as text; columns by name, those of the first file."""
    import pyarrow

    blocks, names = [], None
    for file in files:
        with open_csv(file) as (header, rows):
            names = names or header
            if set(header) != set(names):
                raise DataError(f"{file}: has columns {header}, others have {names}")
            kinds = pyarrow.schema([(name, pyarrow.string()) for name in header])
            lines = (fields for _, fields in rows)
            while block := list(islice(lines, _BLOCK)):
                columns = dict(zip(header, zip(*block, strict=True), strict=True))
                blocks.append(pyarrow.table(columns, schema=kinds).select(names))
            blocks.append(kinds.empty_table().select(names))
    return pyarrow.concat_tables(blocks)


def _hub(path: str | None, name: str | None) -> Mapping[str, Any]:
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"path={path}: this needs the package datasets; install it (extra `data`)"
        ) from error
    if path is None:
        raise DataError("dataset.path=null: set it to a folder, or to a name on the hub")
    place = Path(path).expanduser()
    saved = any((place / file).exists() for file in SAVED)
    where, is_csv = str(place) if place.exists() else path, False
    try:
        if saved:
            found = datasets.load_from_disk(str(place))
        else:
            builder = datasets.load_dataset_builder(where, name)
            is_csv = type(builder.config).__name__ == "CsvConfig"
            files = builder.config.data_files
            if is_csv and place.exists():
                return {str(part): _Columns(_csv(list(map(Path, files[part])))) for part in files}
            found = datasets.load_dataset(where, name)
    except DataError:
        raise
    except Exception as error:  # whatever a loader, the network or a file raises
        raise DataError(f"dataset.path={path}: cannot be loaded ({error})") from error
    parts = {"train": found} if isinstance(found, datasets.Dataset) else found
    return {str(part): _Split(rows, is_csv) for part, rows in parts.items()}
