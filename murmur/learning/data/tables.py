"""Data sets in columns: CSV and Parquet files, and Hugging Face's ``datasets``.

What a column holds decides what it becomes: numbers (F, 1, 1), one for each column, as they are; a
text (1, 1, L), the numbers of its first L words; a picture (C, H, W) in [0, 1]. Nothing is fitted
to the data, neither a scale nor a vocabulary: that would be a release. ``features=pca`` fits on the
public pool. ``Reading`` says which columns are what; ``table`` and ``huggingface`` are data sets.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, islice, takewhile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.cells import (
    are_mostly_numbers,
    column_of_numbers,
    is_missing,
    number_classes,
    number_declared,
    number_owners,
    owner_ids,
    require_labels,
)
from murmur.learning.data.csv_file import open_csv
from murmur.learning.data.examples import DataError, Dataset, Examples, described
from murmur.learning.data.splits import split_test

Column = Sequence[Any]
_WORD = re.compile(r"\w+")
# An index that pandas has written: in a CSV file without a name, in Parquet under this one.
_UNNAMED = re.compile(r"|Unnamed: \d+(\.\d+)*")
_INDEX = re.compile(r"__index_level_\d+__")
_LIKE_AN_ID = re.compile(
    r"(?i:row|(.*[\W_])?(id|idx|index|uid|uuid|guid|rowid|rownum|row_number))|.*[a-z](ID|Id)"
)


@dataclass(frozen=True)
class Reading:
    """Which columns are what.

    ``inputs``: the columns that a model sees; None: all but ``label`` and ``client``. One of texts
    or pictures stands alone. ``client``: the column that says whose each row is. ``classes``: the
    values of ``label`` in the order of their numbers; None: sorted. ``tokenizer``: a local file of
    Hugging Face's ``tokenizers``; None: a word's number is a hash of it. ``vocabulary``: numbers
    from 2 on that such hashes take; 0 is padding, 1 unknown. ``length``: of a text, in tokens.
    ``size``, ``channels``: of pictures, as in ``murmur.learning.data.own_data.image_folder``.
    """

    label: str = "label"
    inputs: Sequence[str] | None = None
    client: str | None = None
    classes: Sequence[str | int] | None = None
    tokenizer: str | None = None
    vocabulary: int = 4096
    length: int = 64
    size: int | Sequence[int] = 28
    channels: int = 1

    def __post_init__(self) -> None:
        for name, least in (("vocabulary", 3), ("length", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least {least}")
        if self.inputs is not None and not self.inputs:
            raise ValueError("inputs=[]: must name a column, or be null for all")
        if self.client == self.label:
            raise ValueError(f"client={self.client}: must be another column than the label")
        for name in self.inputs or ():
            if name in (self.label, self.client):
                raise ValueError(f"inputs={list(self.inputs or ())}: must not name {name}, too")
        if len(set(self.inputs or ())) != len(self.inputs or ()):
            raise ValueError(f"inputs={list(self.inputs or ())}: must not name a column twice")

    def read(
        self,
        parts: Sequence[Mapping[str, Column]],
        source: object,
        names: Sequence[str] = ("", "test"),
        declared: Sequence[str] | None = None,
    ) -> list[Part]:
        """The parts of one data set (train, test), whose columns and classes are alike.

        Args:
            parts: columns by name; inputs are in the order of the first part.
            source: where they are from, for errors.
            names: of the parts, for errors.
            declared: names of the labels 0, 1, ..., where the data set has names of its own.

        Raises:
            DataError: a column is missing, one too many, or cannot be read; it says which.
        """
        places = [f"{source}, {name}" if name else f"{source}" for name in names[: len(parts)]]
        inputs, left_out = self._inputs(parts, places)
        images = self._images(parts, inputs, places)
        labels = [part[self.label] for part in parts]
        for values, place in zip(labels, places, strict=True):
            require_labels(values, place)
        sizes = [len(values) for values in labels]
        every = list(chain(*labels))
        place_of = _places(places, sizes)
        if declared is None:
            numbers, classes = number_classes(every, place_of, self.classes)
        else:
            numbers, classes = number_declared(every, place_of, self.classes, declared)
        split = np.split(numbers, np.cumsum(sizes)[:-1])
        owners = [self._owners(p, place) for p, place in zip(parts, places, strict=True)]
        return [
            Part(Examples(seen, own), whose, classes, left_out)
            for seen, own, whose in zip(images, split, owners, strict=True)
        ]

    def _inputs(
        self, parts: Sequence[Mapping[str, Column]], places: Sequence[str]
    ) -> tuple[list[str], tuple[str, ...]]:
        """The columns that a model sees, and those that pandas has written for itself."""
        if self.client is None:
            known = [self.label]
        else:
            known = [self.label, self.client]
        if self.inputs is not None:
            inputs = list(map(str, self.inputs))
            left_out = []
        else:
            left_out = _unnamed(parts[0], places[0])
            inputs = [name for name in parts[0] if name not in known and name not in left_out]
        for part, place in zip(parts, places, strict=True):
            for name in [*known, *inputs]:
                if name not in part:
                    raise DataError(f"{place}: has no column {name!r}; it has {_listed(part)}")
        if self.inputs is not None:
            return inputs, ()
        _require_alike(parts, places, {*known, *inputs})
        for name in inputs:
            if _LIKE_AN_ID.fullmatch(name):
                raise DataError(
                    f"{places[0]}: column {name!r} looks like a row's number or id, and would be "
                    "an input of the model; name the inputs (dataset.inputs)"
                )
        if not inputs:
            raise DataError(f"{places[0]}: holds no input columns; it has {_listed(parts[0])}")
        return inputs, tuple(left_out)

    def _owners(self, part: Mapping[str, Column], place: str) -> list[str] | None:
        if self.client is None:
            return None
        return owner_ids(part[self.client], self.client, place)

    def _images(
        self, parts: Sequence[Mapping[str, Column]], inputs: Sequence[str], places: Sequence[str]
    ) -> list[NDArray[np.float32]]:
        """The inputs of each part (N, C, H, W)."""
        for part, place in zip(parts, places, strict=True):
            if not len(part[self.label]):
                raise DataError(f"{place}: holds no rows")
        if len(inputs) == 1:
            (name,) = inputs
            columns = [part[name] for part in parts]
            said = [f"{place}: column {name!r}" for place in places]
            read = self._reader(columns)
            images = [read(column, place) for column, place in zip(columns, said, strict=True)]
        else:
            images = [_numbers(p, inputs, at) for p, at in zip(parts, places, strict=True)]
        if len({found.shape[1:] for found in images}) > 1:
            raise DataError(f"{places[1]}: its rows hold more or fewer numbers than the others")
        return images

    def _reader(self, columns: Sequence[Column]) -> Callable[[Column, str], NDArray[np.float32]]:
        """What reads the only input column, by what it holds in all parts."""
        cells = chain(*(column for column in columns if not isinstance(column, np.ndarray)))
        said = [cell for cell in cells if isinstance(cell, str) or not is_missing(cell)]
        if said and isinstance(said[0], str) and not are_mostly_numbers(said):
            return self._texts
        if said and (hasattr(said[0], "convert") or isinstance(said[0], dict)):
            return self._pictures
        return lambda column, place: column_of_numbers(column, place)[:, :, None, None]

    def _texts(self, texts: Column, place: str) -> NDArray[np.float32]:
        ids = np.zeros((len(texts), 1, 1, self.length), np.float32)
        if self.tokenizer is None:
            tokens = _hashed(self.vocabulary)
        else:
            tokens = _file(self.tokenizer)
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise DataError(f"{place}: has no text in row {row} (from 0)")
            known = tokens(text)[: self.length]
            ids[row, 0, 0, : len(known)] = known
        return ids

    def _pictures(self, pictures: Column, place: str) -> NDArray[np.float32]:
        from murmur.learning.data.files import read_stored

        height, width = [self.size] * 2 if isinstance(self.size, int) else self.size
        images = np.empty((len(pictures), self.channels, height, width), np.float32)
        for row, picture in enumerate(pictures):
            at = f"{place}, row {row} (from 0)"
            images[row] = read_stored(picture, height, width, self.channels, at)
        return images / np.float32(255)


@dataclass(frozen=True, eq=False)
class Part:
    """Examples, and whose each is (N,); None where no column says so.

    ``classes``: their names in the order of their numbers. ``left_out``: columns without a name.
    """

    examples: Examples
    owners: list[str] | None
    classes: tuple[str, ...]
    left_out: tuple[str, ...]


def _numbers(part: Mapping[str, Column], inputs: Sequence[str], place: str) -> NDArray[np.float32]:
    values = [column_of_numbers(part[name], f"{place}: column {name!r}") for name in inputs]
    return np.concatenate(values, axis=1)[:, :, None, None]


def _unnamed(names: Iterable[str], place: str) -> list[str]:
    """The columns that pandas has written for itself: before all others, or a kept index."""
    found = [name for name in names if _INDEX.fullmatch(name)]
    rest = [name for name in names if name not in found]
    first = list(takewhile(_UNNAMED.fullmatch, rest))
    for name in rest[len(first) :]:
        if _UNNAMED.fullmatch(name):
            raise DataError(f"{place}: has a column without a name ({name!r}); name it")
    return [*found, *first]


def _require_alike(
    parts: Sequence[Mapping[str, Column]], places: Sequence[str], wanted: set[str]
) -> None:
    """DataError where a later part has columns that the first has not."""
    for part, place in zip(parts[1:], places[1:], strict=True):
        left_out = _unnamed(part, place)
        more = [name for name in part if name not in wanted and name not in left_out]
        if more:
            raise DataError(
                f"{place}: has columns that the training set lacks ({_listed(more)}); take them "
                "out, or name the inputs (dataset.inputs)"
            )


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    more = ""
    if len(found) > 40:
        more = f", … ({len(found)} in all)"
    return ", ".join(found[:40]) + more


def _places(places: Sequence[str], sizes: Sequence[int]) -> Callable[[int], str]:
    """Where a row of all parts together is."""
    starts = list(accumulate(sizes, initial=0))

    def place_of(row: int) -> str:
        part = bisect_right(starts, row) - 1
        return f"{places[part]}, row {row - starts[part]} (from 0)"

    return place_of


def _hashed(vocabulary: int) -> Callable[[str], list[int]]:
    @lru_cache(maxsize=1 << 16)
    def number(word: str) -> int:
        digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
        return 2 + int.from_bytes(digest, "little") % (vocabulary - 2)

    return lambda text: [number(word) for word in _WORD.findall(text.lower())]


def _file(tokenizer: str) -> Callable[[str], list[int]]:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ValueError(
            "tokenizer: reading it needs the package tokenizers; install it (extra `data`)"
        ) from error
    try:
        known = Tokenizer.from_file(str(Path(tokenizer).expanduser()))
    except Exception as error:  # the library raises no other kind
        raise DataError(f"dataset.tokenizer={tokenizer}: cannot be read ({error})") from error
    return lambda text: known.encode(text).ids


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
        columns: see ``murmur.learning.data.tables.Reading``.

    Raises:
        ValueError: a setting is outside its range, or pyarrow is not installed.
        DataError: a file is missing, or has other columns.
    """
    reading = Reading(**columns)
    files = [_frame("path", path)]
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
        columns: see ``murmur.learning.data.tables.Reading``.

    Raises:
        ValueError: a setting is outside its range, or ``datasets`` is not installed.
        DataError: the data set cannot be had, or lacks a split or a column.
    """
    reading = Reading(**columns)
    found = _hub(path, name)
    if test is None:
        wanted = [train]
    else:
        wanted = [train, test]
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
    examples = parts[0].examples
    ids = parts[0].owners
    classes = parts[0].classes
    if ids is None:
        owners = None
    else:
        owners = number_owners(ids)
    train = examples
    test = parts[-1].examples
    if len(parts) == 1:
        if split == "owners":
            together = owners
        else:
            together = None
        rows, held_out = split_test(len(examples), test_fraction, split_seed, together)
        train = examples.take(rows)
        test = examples.take(held_out)
        if owners is None:
            owners = None
        else:
            owners = np.unique(owners[rows], return_inverse=True)[1]
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

        column = self.table[name]
        kind = self.table[name].type
        is_number = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)
        if is_number and not column.null_count:
            return column.to_numpy()
        return column.to_pylist()

    def declared(self, label: str) -> None:
        """A table declares no names of classes."""


class _Split(Mapping[str, Column]):
    """The columns of one split of Hugging Face's; ``guessed``: whether types were guessed."""

    def __init__(self, rows: Any, guessed: bool) -> None:
        self.rows = rows
        self.guessed = guessed

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
        if is_parquet:
            table = pyarrow.parquet.read_table(file)
        else:
            table = _csv([file])
    except (OSError, ValueError) as error:
        raise DataError(f"dataset.{key}={path}: cannot be read ({error})") from error
    names = table.column_names
    if len(set(names)) != len(names):
        raise DataError(f"dataset.{key}={path}: names a column twice; it has {', '.join(names)}")
    return _Columns(table)


def _csv(files: Sequence[Path]) -> Any:
    """The rows of CSV files, all fields as text; columns by name, those of the first file."""
    import pyarrow

    blocks = []
    names = None
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
    where = str(place) if place.exists() else path
    is_csv = False
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
    parts = found
    if isinstance(found, datasets.Dataset):
        parts = {"train": found}
    return {str(part): _Split(rows, is_csv) for part, rows in parts.items()}
