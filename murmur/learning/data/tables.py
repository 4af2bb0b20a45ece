"""Data sets in columns, by pandas: CSV and Parquet files, and Hugging Face's ``datasets``.

What a column holds decides what it becomes: numbers (F, 1, 1), one for each column, as they are; a
text (1, 1, L), the numbers of its first L words; a picture (C, H, W) in [0, 1]. Nothing is fitted
to the data, neither a scale nor a vocabulary: that would be a release. ``features=pca`` fits on the
public pool. ``table`` and ``huggingface`` are the data sets, ``Reading`` says which columns are
what.

With ``blanks`` a row that cannot be read is a blank record, zeros of class 0, rather than an error.
Each row is then read by itself, and what columns hold must be told: the inputs are named, and
``channels`` × ``size`` is the shape of an example, (F, 1, 1) of numbers and (1, 1, L) of a text.

Columns are pandas' with Arrow's types: whole numbers beside missing cells stay whole numbers, and
text stays text. CSV files are read to the letter (``files.open_csv``), with text in every column.
All of this needs the extra ``data``; ``own_data`` and ``datasets`` do without.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache, partial
from itertools import accumulate, chain, islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from murmur.common import require_integer
from murmur.learning.data import cells, examples
from murmur.learning.data.blanks import STRICT, Blanks
from murmur.learning.data.cache import cache_folder, encoder_folder, key_of
from murmur.learning.data.digests import of_arrays
from murmur.learning.data.examples import DataError, Dataset, Examples
from murmur.learning.data.files import open_csv, read_stored
from murmur.settings import Seed

if TYPE_CHECKING:
    import pandas

SAVED = ("dataset_dict.json", "state.json")  # files by which a folder of save_to_disk is known
_PARQUET = b"PAR1"  # its first bytes
_LARGEST = float(np.finfo(np.float32).max)
_COLUMNS = 40  # names of columns in an error
_BLOCK = 1 << 16  # rows of a CSV file that are lists of Python's at a time
_WORD = re.compile(r"\w+")
# Without spaces between words: each letter, with its marks, stands for one.
_SCRIPTS = ("Han", "Hiragana", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan")
_UNSPACED = "".join(rf"\p{{{script}}}" for script in _SCRIPTS)
_WORD_OF_ANY_SCRIPT = rf"[{_UNSPACED}]\p{{M}}*|[\w\p{{M}}&&[^{_UNSPACED}]]+"  # Oniguruma's
_UNNAMED = re.compile(r"|Unnamed: \d+(\.\d+)*")  # an index that pandas has written to a CSV file
_INDEX = re.compile(r"__index_level_\d+__")  # and to a Parquet file
_LIKE_AN_ID = re.compile(
    r"(?i:row|(.*[\W_])?(id|idx|index|uid|uuid|guid|rowid|rownum|row_number))|.*[a-z](ID|Id)"
)
_REAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+)")
_ANY_NUMBER = re.compile(rf"[+-]?\d+|{_REAL.pattern}")
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")
_COMMA = re.compile(r"\s*[+-]?[0-9.]*,[0-9]+\s*")

Split = Literal["owners", "rows"]
Images = NDArray[np.float32]
Reader = Callable[["pandas.Series", str, Blanks], Images]


@dataclass(frozen=True)
class Reading:
    """Which columns are what.

    Attributes:
        label: the column of the classes.
        text: the one column that a model sees, whose cells are read as texts; None: see ``inputs``.
        inputs: the columns that a model sees; None: all but ``label`` and ``client``. One of texts
            or pictures stands alone.
        client: the column that says whose each row is; None: nothing does.
        classes: the values of ``label`` in the order of their numbers; None: sorted.
        tokenizer: a local file of Hugging Face's ``tokenizers``; None: a word's number is a hash.
        vocabulary: numbers that such hashes take, from 2 on; 0 is padding, 1 unknown. At least 3.
        length: of a text, in tokens: what is longer is cut. At least 1.
        size: of pictures in pixels, a side or [height, width].
        channels: of pictures, 1 (grey) or 3 (RGB).
        schema: what is known in public of each input (``murmur.learning.features.bins``), which are
            then the schema's columns; a column with a list is read as the place in it, from 0, or
            −1. None: nothing is.

    Names of columns that are numbers, as in YAML, are their digits.

    Raises:
        ValueError: a number is out of range, or a column has two meanings.
    """

    label: str = "label"
    text: str | None = None
    inputs: Sequence[str] | None = None
    client: str | None = None
    classes: Sequence[Any] | None = None
    tokenizer: str | None = None
    vocabulary: int = 4096
    length: int = 64
    size: int | Sequence[int] = 28
    channels: int = 1
    schema: Mapping[str, Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        for key in ("label", "text", "client"):
            self._set(key, _column_name(key, getattr(self, key)))
        if isinstance(self.inputs, Sequence) and not isinstance(self.inputs, str):
            self._set("inputs", [_column_name("inputs", name) for name in self.inputs])
        if self.schema is not None:
            if not isinstance(self.schema, Mapping):
                raise ValueError(f"schema={self.schema}: must map columns to what they hold")
            told = {_column_name("schema", name): one for name, one in self.schema.items()}
            for name, one in told.items():
                entries = list(one.get("list", ()))
                cells.require_plain(f"schema.{name}.list={entries}", entries)
            self._set("schema", told)
        for name, least, most in (("vocabulary", 3, 2**31), ("length", 1, 100_000)):
            value = getattr(self, name)
            require_integer(name, value, least)
            if value > most:
                raise ValueError(f"{name}={value}: must be at most {most}")
        for name in ("inputs", "classes"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, str) or not isinstance(value, Sequence)):
                raise ValueError(f"{name}={value}: must be a list, or null")
        if self.client == self.label:
            raise ValueError(f"client={self.client}: must be another column than the label")
        if self.text is not None and (self.inputs is not None or self.schema is not None):
            raise ValueError(f"text={self.text}: is the only input; leave inputs and schema null")
        if self.schema is not None and self.inputs not in (None, list(self.schema)):
            raise ValueError(f"inputs={list(self.inputs or [])}: the schema names others")
        inputs = self.named
        if inputs is None:
            return
        if not inputs:
            raise ValueError("inputs=[]: must name a column, or be null for all")
        for name in inputs:
            if name in (self.label, self.client):
                raise ValueError(f"inputs={inputs}: must not name {name}, too")
        if len(set(inputs)) != len(inputs):
            raise ValueError(f"inputs={inputs}: must not name a column twice")

    def _set(self, key: str, value: Any) -> None:
        object.__setattr__(self, key, value)  # of a frozen dataclass

    @property
    def named(self) -> list[str] | None:
        """The inputs that a user names, by themselves or in a schema; None: all columns."""
        if self.text is not None:
            return [self.text]
        if self.inputs is None and self.schema is None:
            return None
        return list(self.inputs or self.schema or [])

    def read(
        self,
        frames: Sequence[pandas.DataFrame],
        places: Sequence[str],
        declared: Sequence[Sequence[str] | None] | None = None,
        blanks: Blanks = STRICT,
    ) -> list[Part]:
        """The parts of one data set (train, test), whose columns and classes are alike.

        Args:
            frames: one for each part, as ``arrow_frame`` makes them; inputs are in the order of the
                first one's columns.
            places: where each is from, for errors.
            declared: of each part the names of its labels 0, 1, ..., where it has names of its
                own, or None; None: no part has.
            blanks: notes rows that cannot be read, where there is one part.

        Raises:
            DataError: a column is missing, one too many, or cannot be read; it says which.
        """
        inputs, left_out = self._inputs(frames, places)
        images, texts = self._images(frames, inputs, places, blanks)
        if declared is None:
            declared = [None] * len(frames)
        numbers, classes = self._labels(frames, places, declared, blanks)
        blanks.clear(*images, *numbers)
        named = self.classes is not None or declared[0] is not None
        owners = self._owners(frames, places)
        return [
            Part(Examples(seen, own), ids, classes, tuple(inputs), left_out, texts, named)
            for seen, own, ids in zip(images, numbers, owners, strict=True)
        ]

    def _labels(
        self,
        frames: Sequence[pandas.DataFrame],
        places: Sequence[str],
        declared: Sequence[Sequence[str] | None],
        blanks: Blanks,
    ) -> tuple[list[NDArray[np.int64]], tuple[str, ...]]:
        """The numbers of the labels of each part, which agree by name, and the classes' names."""
        ends = list(accumulate(map(len, frames)))
        words: list[Any] = []

        def place_of(row: int) -> str:
            part = bisect_right(ends, row)
            start = ends[part] - len(frames[part])
            return _row_of(places[part], row - start)

        for frame, place, own in zip(frames, places, declared, strict=True):
            values = _cells(frame[self.label])
            if not blanks.allowed:
                cells.require_labels(values, place)
            at = partial(_row_of, place)
            if own is not None:
                values = cells.declared_names(values, at, own, blanks)
            elif declared[0] is not None:
                values = cells.label_names(values, at)
            words += values
        if declared[0] is None:
            numbers, classes = cells.number_classes(words, place_of, self.classes, blanks)
        else:
            numbers, classes = cells.number_declared(
                words, place_of, self.classes, declared[0], blanks
            )
        return np.split(numbers, ends[:-1]), classes

    def _owners(
        self, frames: Sequence[pandas.DataFrame], places: Sequence[str]
    ) -> list[list[str] | None]:
        """Whose each row of each part is; None where no column says so.

        Raises:
            DataError: as ``owner_ids``, or two ids differ by form, case or outer space only.
        """
        if self.client is None:
            return [None] * len(frames)
        found = []
        for frame, place in zip(frames, places, strict=True):
            found.append(owner_ids(frame[self.client], f"{place}: column {self.client!r}"))
        cells.require_unlike(chain(*found), f"{places[-1]}: column {self.client!r}")
        return [[cells.nfc(owner) for owner in ids] for ids in found]

    def _inputs(
        self, frames: Sequence[pandas.DataFrame], places: Sequence[str]
    ) -> tuple[list[str], tuple[str, ...]]:
        """The columns that a model sees, and what is said of those that it does not.

        Raises:
            DataError: a column is missing, a part has no rows, or inputs must be named.
        """
        known = [name for name in (self.label, self.client) if name is not None]
        left_out: list[str] = []
        if self.named is not None:
            inputs = list(map(str, self.named))
            others = [name or "''" for name in frames[0] if name not in (*known, *inputs)]
            if others:
                left_out.append(
                    f"columns that are not among the inputs: {cells.listed(others, _COLUMNS)}"
                )
        else:
            indices = _unnamed(frames[0], places[0])
            inputs = [name for name in frames[0] if name not in known and name not in indices]
            left_out += [f"column {name!r}, an index" for name in indices]
        for frame, place in zip(frames, places, strict=True):
            for name in [*known, *inputs]:
                if name not in frame:
                    raise _no_column(name, frame, place)
            if not len(frame):
                raise DataError(f"{place}: holds no rows")
        if self.named is None:
            self._require_inputs(frames, places, known, inputs)
        return inputs, tuple(left_out)

    def _require_inputs(
        self,
        frames: Sequence[pandas.DataFrame],
        places: Sequence[str],
        known: Sequence[str],
        inputs: Sequence[str],
    ) -> None:
        """Refuse columns that nobody has named and that cannot all be inputs.

        Args:
            frames: the parts.
            places: where they are from, for errors.
            known: columns that are no inputs.
            inputs: all others of the first part.

        Raises:
            DataError: another part has more columns, one looks like an id, or there is none.
        """
        for frame, place in zip(frames[1:], places[1:], strict=True):
            expected = {*known, *inputs, *_unnamed(frame, place)}
            more = [name for name in frame if name not in expected]
            if more:
                raise DataError(
                    f"{place}: has columns that the training set lacks "
                    f"({cells.listed(more, _COLUMNS)}); take them out, or name the inputs "
                    "(dataset.inputs)"
                )
        for name in inputs:
            if _LIKE_AN_ID.fullmatch(name):
                raise DataError(
                    f"{places[0]}: column {name!r} looks like a row's number or id, and would be "
                    "an input of the model; name the inputs (dataset.inputs)"
                )
        if not inputs:
            raise DataError(
                f"{places[0]}: holds no input columns; it has {cells.listed(frames[0], _COLUMNS)}"
            )

    def _images(
        self,
        frames: Sequence[pandas.DataFrame],
        inputs: Sequence[str],
        places: Sequence[str],
        blanks: Blanks,
    ) -> tuple[list[Images], bool]:
        """The inputs of each part (N, C, H, W), and whether they are numbers of words."""
        read: Reader = numbers_of
        if self.text is not None:
            read = self._texts
        elif len(inputs) == 1:
            read = self._reader([frame[inputs[0]] for frame in frames], blanks)
        images = []
        for frame, place in zip(frames, places, strict=True):
            if blanks.allowed and any(_kind(frame[name]) is list for name in inputs):
                images.append(_joined_lists(frame[list(inputs)], self.channels, place, blanks))
                continue
            columns = [
                self._column(frame[name], f"{place}: column {name!r}", read, blanks)
                for name in inputs
            ]
            images.append(np.concatenate(columns, axis=1))
        if len({found.shape[1:] for found in images}) > 1:
            raise DataError(f"{places[1]}: its rows hold more or fewer numbers than the others")
        return images, read == self._texts

    def _column(self, column: pandas.Series, place: str, read: Reader, blanks: Blanks) -> Images:
        """What ``read`` makes of a column, or the schema, where it lists the values."""
        known = (self.schema or {}).get(str(column.name), {})
        if "list" in known:
            return _places_in(known["list"], column, place, blanks)
        if "range" in known:
            low, high = known["range"]
            return _in_range(low, high, column, place, blanks)
        return read(column, place, blanks)

    def _reader(self, columns: Sequence[pandas.Series], blanks: Blanks) -> Reader:
        """What reads the only input column, by what it holds in all parts.

        Texts that are mostly numbers are numbers, so that a wrong one is refused and not hashed.
        Where a row may be blank, no other row says what it is: the shape of an example does.
        """
        kind = _kind(columns[0])
        if kind is dict:
            return self._pictures
        if kind is str and blanks.allowed:
            return self._texts if self.length > 1 else numbers_of
        if kind is str:
            texts = chain(*(_cells(column) for column in columns))
            if not _are_mostly_numbers([text for text in texts if isinstance(text, str)]):
                return self._texts
        return numbers_of

    def _texts(self, column: pandas.Series, place: str, blanks: Blanks = STRICT) -> Images:
        texts = _cells(column)
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                blanks.add(row, DataError(f"{place}: has no text in row {row} (from 0)"))
                texts[row] = ""
        if self.tokenizer is not None:
            return encoded(texts, self.tokenizer, self.length)
        return _padded(map(_hashed(self.vocabulary), texts), len(texts), self.length)

    def _pictures(self, column: pandas.Series, place: str, blanks: Blanks = STRICT) -> Images:
        """The pictures of a column's cells, (N, C, H, W) in [0, 1]."""
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        images = np.zeros((len(column), self.channels, height, width), np.float32)
        for row, picture in enumerate(_cells(column)):
            at = f"{place}, row {row} (from 0)"
            with blanks.of(row):
                images[row] = read_stored(picture, height, width, self.channels, at)
        return images / np.float32(255)


@dataclass(frozen=True, eq=False)
class Part:
    """One part of a data set, as ``Reading.read`` gives it.

    Attributes:
        examples: inputs and labels.
        owners: whose each example is, as text; None where no column says so.
        classes: names of the classes in the order of their numbers.
        inputs: columns that a model sees.
        left_out: what was not used, and why.
        texts: whether inputs are numbers of words.
        named: whether somebody has named the classes, or they are those found.
    """

    examples: Examples
    owners: list[str] | None
    classes: tuple[str, ...]
    inputs: tuple[str, ...]
    left_out: tuple[str, ...]
    texts: bool = False
    named: bool = False

    def thinned(self, most: int, seed: int) -> Part:
        """The same with ``most`` rows of each owner at most."""
        assert self.owners is not None
        rows = examples.few_of_each(examples.numbered_owners(self.owners)[0], most, seed)
        owners = [self.owners[row] for row in rows]
        return replace(self, examples=self.examples.take(rows), owners=owners)


def table(
    *,
    path: str | None,
    test_path: str | None = None,
    test_fraction: float = 0.2,
    split_seed: Seed = 0,
    split: Split = "owners",
    test_owners: float | None = None,
    rows_per_owner: int | None = None,
    blanks: bool = False,
    **columns: Any,
) -> Dataset:
    """A CSV or Parquet file with a header, and perhaps another for the test set.

    Args:
        path: the file.
        test_path: the test set; None: ``test_fraction`` of the rows.
        test_fraction: share of the rows held out for evaluation, in [0, 1).
        split_seed: which ones; the split depends on nothing else.
        split: whether pool, validation and test set take whole owners, or rows of any.
        test_owners: share of the owners held out instead, in (0, 1); None: ``test_fraction``.
        rows_per_owner: the most rows of an owner that are used, drawn by ``split_seed``; None: all.
        blanks: see the head of this file.
        columns: see ``Reading``.

    Raises:
        ValueError: a setting is outside its range, or the extra ``data`` is not installed.
        DataError: a file is missing, or has other columns.
    """
    reading = Reading(**columns)
    if (test_owners or rows_per_owner) and reading.client is None:
        raise ValueError("test_owners and rows_per_owner: name the owners' column (dataset.client)")
    bad = Blanks(blanks)
    frames = [_frame("path", path, bad)]
    places = [f"{path}"]
    if test_path is not None:
        frames.append(_frame("test_path", test_path))
        places.append(f"{path}, {test_path}")
    parts = reading.read(frames, places, blanks=bad)
    read = sum(len(part.examples) for part in parts)
    if rows_per_owner is not None:
        parts = [part.thinned(rows_per_owner, split_seed) for part in parts]
    found = _dataset("table", parts, test_fraction, split_seed, split, test_owners)
    notes = found.notes
    if more := read - len(found.train) - len(found.test):
        notes = (*notes, f"{more:,} rows beyond rows_per_owner={rows_per_owner}")
    return replace(found, blanks=bad.rows, notes=notes)


def huggingface(
    *,
    path: str | None,
    name: str | None = None,
    train: str = "train",
    test: str | None = "test",
    test_fraction: float = 0.2,
    split_seed: Seed = 0,
    split: Split = "owners",
    blanks: bool = False,
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
        blanks: see the head of this file.
        columns: see ``Reading``.

    Raises:
        ValueError: a setting is outside its range, or the extra ``data`` is not installed.
        DataError: the data set cannot be had, or lacks a split or a column.
    """
    reading = Reading(**columns)
    found, is_guessed = _hub(path, name)
    wanted = [part for part in (train, test) if part is not None]
    for part in wanted:
        if part not in found:
            raise _no_split(path, part, test, list(found))
    if reading.client is not None and is_guessed:
        raise DataError(
            f"dataset.path={path}: its CSV files are read by guessing types, which changes owners' "
            "ids (007 becomes 7); download them and use dataset=table"
        )
    # Pictures are mappings with the ``bytes`` or the ``path`` of a file.
    frames = [arrow_frame(found[part].with_format("arrow")[:]) for part in wanted]
    places = [f"{path}, split {part!r}" for part in wanted]
    declared = [getattr(found[part].features.get(reading.label), "names", None) for part in wanted]
    bad = Blanks(blanks)
    parts = reading.read(frames, places, declared, bad)
    data = _dataset(Path(str(path)).name, parts, test_fraction, split_seed, split)
    others = tuple(f"split {part!r}" for part in found if part not in wanted)
    return replace(data, blanks=bad.rows, notes=(*data.notes, *others))


def _no_split(path: str | None, part: str, test: str | None, known: list[str]) -> DataError:
    """The refusal of a split that a data set lacks; ``test``: the split for evaluation."""
    remedy = "name one of these (dataset.train, dataset.test)"
    if part == test:
        remedy = (
            "name one of these (dataset.test), or let a share of the training rows, of whole "
            "owners where dataset.client names them, be the test set (dataset.test=null)"
        )
    return DataError(f"dataset.path={path}: has no split {part!r}; it has {known}; {remedy}")


def _dataset(
    name: str,
    parts: list[Part],
    test_fraction: float,
    split_seed: int,
    split: Split,
    test_owners: float | None = None,
) -> Dataset:
    """A data set of one part, of which a share is held out, or of a train and a test part.

    Args:
        name: of the data set.
        parts: one or two.
        test_fraction: share of the rows that are held out of one part.
        split_seed: which ones.
        split: whether whole owners are held out; of two parts, whether no owner may be in both.
        test_owners: share of the owners of the first part that are held out instead; None: none.

    Raises:
        DataError: an owner has rows in both parts.
    """
    first = parts[0]
    train = first.examples
    test = parts[-1].examples
    halves = None
    owners = None
    tested = None
    ids: tuple[str, ...] = ()
    test_ids = tuple(sorted(set(parts[-1].owners or ())))
    if first.owners is not None:
        owners, ids = examples.numbered_owners(first.owners)
    if test_owners is not None and owners is not None:
        split = "owners"
        halves = examples.split_owners(owners, test_owners, split_seed, train.labels)
        tested = examples.numbered_owners([ids[owner] for owner in owners[halves[1]]])[0]
    elif len(parts) == 1:
        together = owners if split == "owners" else None
        halves = examples.split_test(train.labels, test_fraction, split_seed, together)
    elif first.owners is not None and split == "owners":
        examples.require_apart(first.owners, parts[1].owners or [])
    if halves is not None:
        train = first.examples.take(halves[0])
        test = first.examples.take(halves[1])
        if first.owners is not None:
            test_ids = tuple(sorted({first.owners[row] for row in halves[1]}))
            owners, ids = examples.numbered_owners([first.owners[row] for row in halves[0]])
    classes = first.classes
    shape = train.images.shape[1:]
    count = max(2, len(classes))
    digests = {}
    if first.owners is not None:  # numbers do not tell one person from another
        digests = {"owners": of_arrays(*(part.owners for part in parts))}
    return Dataset(
        name,
        train,
        test,
        count,
        shape,
        owners,
        split,
        classes,
        first.left_out,
        tested,
        first.texts,
        named=first.named,
        digests=digests,
        columns=first.inputs,
        owner_ids=ids,
        test_owner_ids=test_ids,
    )


def _row_of(place: str, row: int) -> str:
    """Where a row is, for errors."""
    return f"{place}, row {row} (from 0)"


def _column_name(key: str, name: Any) -> str | None:
    """The name of a column that the setting ``key`` gives, as text in NFC; None where it is None.

    Raises:
        ValueError: YAML has made something else of it than text or a number.
    """
    if name is None:
        return None
    cells.require_plain(f"{key}={name}", [name])
    return cells.nfc(str(name))


def _column(numbers: Sequence[float]) -> Images:
    return np.array(numbers, np.float32)[:, None, None, None]


def _places_in(entries: Sequence[Any], column: pandas.Series, place: str, blanks: Blanks) -> Images:
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
    texts = [None if cell is None else cells.nfc(str(cell)) for cell in _cells(column)]
    known = {
        text: places.get(text, places.get(cells.key_of(text), -1))
        for text in dict.fromkeys(texts)
        if text is not None
    }
    if not blanks.allowed:
        _require_quotes(known, entries, place)
        _require_kind(column, all(map(_is_number, values)), any(map(_is_number, values)), place)
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


def _in_range(low: float, high: float, column: pandas.Series, place: str, blanks: Blanks) -> Images:
    """The numbers of ``column``; what is none is a number below the schema's range.

    Raises:
        DataError: the column does not hold numbers, where no row may be blank.
    """
    if not blanks.allowed:
        _require_kind(column, True, True, place)
    return _column([_or_below(cell, low, high) for cell in _cells(column)])


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
    kind = _kind(column)
    if kind not in (str, bool, int, float, Decimal):
        raise DataError(
            f"{place}: holds {kind.__name__}, the schema says values or a range; mend the schema "
            "(dataset.schema) or the column"
        )
    written = [cell for cell in _cells(column) if not cells.is_missing(cell)]
    if not written:
        return
    are_numbers = kind is not str or _are_mostly_numbers([str(cell) for cell in written])
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
        return min(max(number, -_LARGEST), _LARGEST)
    return low - (high - low)


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


def _kind(column: pandas.Series) -> type:
    """The type of a column's cells: int, float, bool, str, dict, list, Decimal, a date, ..."""
    return column.dtype.type


def _cells(column: pandas.Series) -> list[Any]:
    """The cells as Python's own values, None where there is nothing."""
    return column.to_numpy(dtype=object, na_value=None).tolist()


def owner_ids(column: pandas.Series, place: str) -> list[str]:
    """Owners' ids as text: exactly as written, or the digits of a whole number.

    Args:
        column: of text, whole numbers or booleans.
        place: file and column, for errors.

    Raises:
        DataError: an id is missing, or the column holds real numbers (also as text) or other
            values, of which two may be one owner or one of them two.
    """
    ids = _cells(column)
    for row, value in enumerate(ids):
        if cells.is_missing(value):
            raise DataError(
                f"{place}, row {row} (from 0): has no owner's id; add it, or leave the row out"
            )
    kind = _kind(column)
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


def numbers_of(column: pandas.Series, place: str, blanks: Blanks = STRICT) -> Images:
    """The numbers of a column (N, F, 1, 1): F is 1, or the length of the lists that it holds.

    Text is read as numbers with a decimal point, and True and False as 1 and 0.

    Args:
        column: numbers, booleans, text or lists of numbers.
        place: file and column, for errors.
        blanks: notes rows that hold none; no lists then.

    Raises:
        DataError: a value is missing, no finite number, or not to be had in 32 bits.
    """
    kind = _kind(column)
    missing = column.isna().to_numpy()
    blanks.add_all(missing, lambda row: _no_number(None, row, place))
    if missing.any() and kind in (str, bool, int, float, Decimal):
        column = column.where(~missing, "0" if kind is str else kind(0))
    if kind is str:
        wide = _of_text(column, place, blanks)[:, None]
    elif kind is list:
        wide = _of_lists(column, place)
    elif kind is Decimal:
        wide = np.array(list(map(float, column)))[:, None]
    elif kind in (bool, int, float):
        wide = column.to_numpy()[:, None]
    else:
        blanks.add_all(~missing, lambda row: _no_number(column.iloc[row], row, place))
        wide = np.zeros((len(column), 1))
    infinite = ~np.all(np.isfinite(wide), axis=1)
    blanks.add_all(
        infinite,
        lambda row: DataError(f"{place}: has no finite number in row {row} (from 0)"),
    )
    if infinite.any():
        wide = np.where(infinite[:, None], 0, wide)
    return cells.narrow(wide, place, blanks)[:, :, None, None]


def _of_text(column: pandas.Series, place: str, blanks: Blanks) -> NDArray[np.float64]:
    """The numbers that texts write, (N,), and 1 and 0 where all are booleans.

    Where a row may be blank, each boolean is 1 or 0.

    Raises:
        DataError: a text is no number, or a whole one is too large for 32 bits.
    """
    booleans = column.isin(list(cells.BOOLEANS))
    if booleans.all():
        return np.array([float(cells.BOOLEANS[text]) for text in column])
    if blanks.allowed and booleans.any():
        column = column.replace(cells.BOOLEANS)
    try:
        numbers = column.astype("double[pyarrow]").to_numpy()
    except ValueError:  # spaces and signs, which Python reads and Arrow does not, or no number
        numbers = np.zeros(len(column))
        for row, text in enumerate(column):
            with blanks.of(row):
                numbers[row] = _python_number(text, row, place)
    large = (np.abs(numbers) > cells.LARGEST_WHOLE) & np.isfinite(numbers)
    for row in np.flatnonzero(large).tolist():
        if _WHOLE.fullmatch(column.iloc[row]):
            blanks.add(row, cells.too_large(place))
    return numbers


def _python_number(text: str, row: int, place: str) -> float:
    """A number with a decimal point as Python reads it; DataError where it is none."""
    if not _is_number(text):
        raise _no_number(text, row, place)
    return float(text)


def _joined_lists(
    frame: pandas.DataFrame, width: int, place: str, blanks: Blanks
) -> NDArray[np.float32]:
    """Each row's numbers side by side (N, width, 1, 1), lists and single ones, row by row."""
    found = np.zeros((len(frame), width), np.float32)
    columns = [_cells(frame[name]) for name in frame]
    for row, values in enumerate(zip(*columns, strict=True)):
        with blanks.of(row):
            numbers = np.concatenate([np.ravel(value) for value in values])
            if numbers.dtype.kind not in "biuf" or not np.isfinite(numbers).all():
                raise DataError(f"{place}: has no finite number in row {row} (from 0)")
            if len(numbers) != width:
                raise DataError(f"{place}: has {len(numbers)} numbers in row {row}, not {width}")
            found[row] = cells.narrow(numbers[None], place)[0]
    return found[:, :, None, None]


def _of_lists(column: pandas.Series, place: str) -> NDArray[Any]:
    """Lists of numbers, (N, F); DataError where they differ in length or hold something else."""
    rows = []
    for row, value in enumerate(column.tolist()):
        numbers = np.ravel(value)
        if numbers.dtype.kind not in "biuf":
            raise _no_number(value, row, place)
        rows.append(numbers)
    if len(set(map(len, rows))) != 1:
        raise DataError(f"{place}: holds lists of different lengths; make them equal")
    return np.stack(rows)


def _are_mostly_numbers(texts: Sequence[str]) -> bool:
    """Whether at least half of the cells with any text hold numbers, or all hold booleans.

    A decimal comma counts: such a column is refused as numbers, and not read as words.
    """
    written = [text for text in texts if not cells.is_missing(text)]
    numbers = sum(_is_number(text) or _COMMA.fullmatch(text) is not None for text in written)
    return 0 < len(written) <= 2 * numbers or (len(written) > 0 and {*written} <= {*cells.BOOLEANS})


def _is_number(text: str) -> bool:
    """Whether Python reads it as a number; it would also take 1_000."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _no_number(value: Any, row: int, place: str) -> DataError:
    if cells.is_missing(value):
        return DataError(
            f"{place}: has no finite number in row {row} (from 0); fill it, or leave it out"
        )
    if isinstance(value, str) and _COMMA.fullmatch(value):
        return DataError(
            f"{place}: has {value!r} in row {row} (from 0); write numbers with a decimal point and "
            "without commas"
        )
    return DataError(
        f"{place} holds more than numbers: {str(value)[:40]!r} in row {row} (from 0); leave it out "
        "(dataset.inputs), or turn it into numbers"
    )


def _no_column(name: str, names: Iterable[str], place: str) -> DataError:
    """The refusal of a column that a table lacks, with the quotes that its name in YAML lacks."""
    known = list(names)
    for word in known:
        if word != name and cells.unquoted(word) == name:
            return DataError(
                f"{place}: has no column {name!r}, as which YAML reads {word} without quotes; "
                f"write '{word}' with the quotes"
            )
    return DataError(f"{place}: has no column {name!r}; it has {cells.listed(known, _COLUMNS)}")


def _unnamed(names: Iterable[str], place: str) -> list[str]:
    """The columns that pandas has written for itself: before all others, or a kept index."""
    kept = [name for name in names if _INDEX.fullmatch(name)]
    rest = [name for name in names if name not in kept]
    first = list(takewhile(_UNNAMED.fullmatch, rest))
    for name in rest[len(first) :]:
        if _UNNAMED.fullmatch(name):
            raise DataError(f"{place}: has a column without a name ({name!r}); name it")
    return [*kept, *first]


def _hashed(vocabulary: int) -> Callable[[str], list[int]]:
    """What turns a text into numbers of its words.

    A hash is the same for everybody, and knows no data.

    Args:
        vocabulary: numbers lie from 2 to below it.
    """

    @lru_cache(maxsize=1 << 16)
    def number(word: str) -> int:
        digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
        return 2 + int.from_bytes(digest, "little") % (vocabulary - 2)

    return lambda text: [number(word) for word in words_of(text)]


def words_of(text: str) -> list[str]:
    """The words of ``text`` in lower case, whatever its script and its form of Unicode.

    Between spaces and signs, accents and vowel signs included; one letter after the other where a
    script has no spaces between words. Katakana, of whole words, is split by other scripts only.
    """
    text = unicodedata.normalize("NFC", text).lower()
    if text.isascii():
        return _WORD.findall(text)
    return [word for word, _ in _splitter().pre_tokenize_str(text)]


@lru_cache(maxsize=1)
def _splitter() -> Any:
    """What splits a text by ``_WORD_OF_ANY_SCRIPT``; ValueError without the extra ``data``."""
    try:
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import Split
    except ImportError as error:
        raise _lacking("text", "tokenizers") from error
    return Split(Regex(_WORD_OF_ANY_SCRIPT), "removed", invert=True)


def encoded(texts: Sequence[str], tokenizer: str, length: int) -> Images:
    """The first ``length`` token numbers of each text by a tokenizer, (n, 1, 1, length).

    Raises:
        ValueError, DataError: as ``tokenizer_of``.
    """
    known = tokenizer_of(tokenizer)
    return _padded((known.encode(text).ids for text in texts), len(texts), length)


def _padded(tokens: Iterable[Sequence[int]], count: int, length: int) -> Images:
    """The first ``length`` of each text's ``tokens``, (count, 1, 1, length), then zeros."""
    ids = np.zeros((count, 1, 1, length), np.float32)
    for row, found in zip(ids, tokens, strict=True):
        row[0, 0, : len(found)] = found[:length]
    return ids


def vocabulary_of(tokenizer: str) -> int:
    """How many tokens a tokenizer knows: all their numbers lie below.

    Raises:
        ValueError, DataError: as ``tokenizer_of``.
    """
    return 1 + max(tokenizer_of(tokenizer).get_vocab().values())


def tokenizer_of(tokenizer: str) -> Any:
    """A tokenizer of Hugging Face's, which pads and cuts nothing.

    Raises:
        ValueError: the extra ``data`` is not installed.
        DataError: the file is no tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise _lacking("tokenizer", "tokenizers") from error
    try:
        place = Path(tokenizer).expanduser()
        if not place.is_file():  # an encoder's folder or package
            place = encoder_folder(tokenizer) / "tokenizer.json"
        known = Tokenizer.from_file(str(place))
        known.no_padding()
        known.no_truncation()
    except DataError:
        raise
    except Exception as error:  # the library raises no other kind
        raise DataError(f"dataset.tokenizer={tokenizer}: cannot be read ({error})") from error
    return known


def _lacking(setting: str, packages: str) -> ValueError:
    """The refusal of a setting for which packages are missing."""
    return ValueError(f"{setting}: reading it needs {packages}; install it (extra `data`)")


def _frame(key: str, path: str | None, blanks: Blanks = STRICT) -> pandas.DataFrame:
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
        raise _lacking(f"{key}={path}", "pandas and pyarrow") from error
    if path is None:
        raise DataError(f"dataset.{key}=null: set it to the place where your table lies")
    file = Path(path).expanduser()
    try:
        with file.open("rb") as opened:
            is_parquet = opened.read(len(_PARQUET)) == _PARQUET
        if not is_parquet:
            return _csv_frame([file], blanks)
        columns = pyarrow.parquet.read_table(file)
    except (OSError, ValueError) as error:
        raise DataError(f"dataset.{key}={path}: cannot be read ({error})") from error
    names = list(map(cells.nfc, columns.column_names))
    if len(set(names)) != len(names):
        raise DataError(f"dataset.{key}={path}: names a column twice; it has {', '.join(names)}")
    return arrow_frame(columns)


def _csv_frame(files: Iterable[str | Path], blanks: Blanks = STRICT) -> pandas.DataFrame:
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
            while block := list(islice(lines, _BLOCK)):
                blocks.append(pandas.DataFrame(block, columns=header, dtype=text))
    return pandas.concat(blocks, ignore_index=True)


def _cache_of(place: Path) -> str:
    """Where ``datasets`` keeps what it decodes of a local folder: its own cache goes by times.

    Raises:
        DataError: it would pass over a folder of ``place``.
    """
    every = [(path.relative_to(place).parts, path) for path in sorted(place.rglob("*"))]
    below = [path for parts, path in every if not any(part.startswith(".") for part in parts)]
    for path in below:
        if path.is_symlink() and path.is_dir():
            raise DataError(
                f"{path}: is a link to a folder, which `datasets` does not follow; put the folder "
                "there, or use dataset=image_folder for pictures"
            )
    key = key_of("datasets", [path for path in below if path.is_file()], {})
    return str(cache_folder(None) / f"datasets-{key}")


def _hub(path: str | None, name: str | None) -> tuple[dict[str, Any], bool]:
    """The splits of a local folder or of a data set on the hub.

    Returns:
        A ``datasets.Dataset`` by name, and whether a reader has guessed their types.

    Raises:
        ValueError: the extra ``data`` is not installed.
        DataError: it cannot be had, for whatever reason.
    """
    try:
        import datasets
        import pandas  # noqa: F401
    except ImportError as error:
        raise _lacking(f"path={path}", "datasets and pandas") from error
    if path is None:
        raise DataError("dataset.path=null: set it to a folder, or to a name on the hub")
    place = Path(path).expanduser()
    is_csv = False
    try:
        if any((place / file).exists() for file in SAVED):
            found = datasets.load_from_disk(str(place))
        else:
            where, kept = path, None
            if place.exists():
                where, kept = str(place), _cache_of(place)
            config = datasets.load_dataset_builder(where, name, cache_dir=kept).config
            is_csv = type(config).__name__ == "CsvConfig"
            if is_csv and place.exists():  # as ``table`` reads them: nothing is guessed
                frames = {str(part): _csv_frame(files) for part, files in config.data_files.items()}
                read = partial(datasets.Dataset.from_pandas, preserve_index=False)
                return {part: read(frame) for part, frame in frames.items()}, False
            found = datasets.load_dataset(where, name, cache_dir=kept)
    except DataError:
        raise
    except Exception as error:  # whatever a loader, the network or a file raises
        raise DataError(f"dataset.path={path}: cannot be loaded ({error})") from error
    if isinstance(found, datasets.Dataset):
        found = {"train": found}
    return {str(part): rows for part, rows in found.items()}, is_csv
