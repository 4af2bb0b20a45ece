"""A table's columns: label, inputs and owner, and the examples that they become."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from murmur.checks import require_integer
from murmur.learning.data import cells, examples
from murmur.learning.data.blanks import STRICT, Blanks
from murmur.learning.data.examples import DataError, Examples
from murmur.learning.data.frames import Images, cells_of, kind_of
from murmur.learning.data.numeric_columns import are_mostly_numbers, joined_lists, numbers_of
from murmur.learning.data.owner_column import owner_ids
from murmur.learning.data.pictures import read_stored
from murmur.learning.data.schema_columns import numbers_in_range, places_in
from murmur.learning.data.target_columns import binary_labels, number_labels, objective_of
from murmur.learning.data.tokens import encoded, hashed_words, padded
from murmur.learning.objective import CLASSIFICATION, Objective

if TYPE_CHECKING:
    import pandas

_MAX_NAMES_SHOWN = 40  # of columns, in an error
_UNNAMED = re.compile(r"|Unnamed: \d+(\.\d+)*")  # an index that pandas has written to a CSV file
_INDEX = re.compile(r"__index_level_\d+__")  # and to a Parquet file
_LIKE_AN_ID = re.compile(
    r"(?i:row|(.*[\W_])?(id|idx|index|uid|uuid|guid|rowid|rownum|row_number))|.*[a-z](ID|Id)"
)
Reader = Callable[["pandas.Series", str, Blanks], Images]


@dataclass(frozen=True)
class ColumnSpec:
    """Label, inputs and owner of a table, by column.

    Attributes:
        label: the column of the classes, or of a regression's numbers.
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
        task: what labels are (``murmur.learning.objective``).
        labels: columns of 0 and 1 of task=multilabel, two at least, in place of ``label``.
        label_range: of task=regression, [low, high], as it is known in public.

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
    task: str = "classification"
    labels: Sequence[str] | None = None
    label_range: Sequence[float] | None = None

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
        for name in ("inputs", "classes", "labels"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, str) or not isinstance(value, Sequence)):
                raise ValueError(f"{name}={value}: must be a list, or null")
        self._require_task()
        if self.client in self.label_columns:
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
            if name in (*self.label_columns, self.client):
                raise ValueError(f"inputs={inputs}: must not name {name}, too")
        if len(set(inputs)) != len(inputs):
            raise ValueError(f"inputs={inputs}: must not name a column twice")

    def _require_task(self) -> None:
        """ValueError where the settings of labels are not those of the task."""
        if self.labels is not None:
            self._set("labels", [_column_name("labels", name) for name in self.labels])
        task = self.objective.kind
        if task != "classification" and self.classes is not None:
            raise ValueError(f"classes={self.classes}: task={task} has none; set it to null")
        if task == "multilabel" and len(set(self.label_columns)) < 2:
            raise ValueError(
                f"labels={self.labels}: task=multilabel needs two or more columns of 0 and 1"
            )
        if len(set(self.label_columns)) < len(self.label_columns):
            raise ValueError(f"labels={self.labels}: must not name a column twice")

    @property
    def objective(self) -> Objective:
        """The task, with the range of its labels."""
        return objective_of(self.task, self.label_range, self.labels)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns that hold labels."""
        if self.task == "multilabel":
            return tuple(self.labels or ())
        return (self.label,)

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
    ) -> list[Split]:
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
        if self.objective.has_classes:
            numbers, classes = self._labels(frames, places, declared, blanks)
            named = self.classes is not None or declared[0] is not None
        else:
            numbers, classes = self._targets(frames, places, blanks)
            named = True
        blanks.clear(*images, *numbers)
        owners = self._owners(frames, places)
        return [
            Split(
                Examples(seen, own),
                ids,
                classes,
                tuple(inputs),
                left_out,
                texts,
                named,
                self.objective,
            )
            for seen, own, ids in zip(images, numbers, owners, strict=True)
        ]

    def read_inputs(self, frame: pandas.DataFrame, place: str) -> Images:
        """The inputs (N, C, H, W) of rows whose labels nobody knows, such as rows to predict.

        Raises:
            DataError: a column is missing or cannot be read, or there are no rows.
        """
        inputs = self.named or []
        for name in inputs:
            if name not in frame:
                raise _no_column(name, frame, place)
        if not len(frame):
            raise DataError(f"{place}: holds no rows")
        images, _ = self._images([frame], inputs, [place], STRICT)
        return images[0]

    def _labels(
        self,
        frames: Sequence[pandas.DataFrame],
        places: Sequence[str],
        declared: Sequence[Sequence[str] | None],
        blanks: Blanks,
    ) -> tuple[list[NDArray[Any]], tuple[str, ...]]:
        """The numbers of the labels of each part, which agree by name, and the classes' names."""
        ends = list(accumulate(map(len, frames)))
        words: list[Any] = []

        def place_of(row: int) -> str:
            part = bisect_right(ends, row)
            start = ends[part] - len(frames[part])
            return _row_of(places[part], row - start)

        for frame, place, own in zip(frames, places, declared, strict=True):
            values = cells_of(frame[self.label])
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

    def _targets(
        self, frames: Sequence[pandas.DataFrame], places: Sequence[str], blanks: Blanks
    ) -> tuple[list[NDArray[Any]], tuple[str, ...]]:
        """The labels of each part where they are no classes, and the names of several."""
        parts = list(zip(frames, places, strict=True))
        if self.task == "multilabel":
            names = self.label_columns
            return [binary_labels(frame, names, place, blanks) for frame, place in parts], names
        found: list[NDArray[Any]] = [
            number_labels(frame[self.label], f"{place}: column {self.label!r}", blanks)
            for frame, place in parts
        ]
        return found, ()

    def _owners(
        self, frames: Sequence[pandas.DataFrame], places: Sequence[str]
    ) -> list[list[str] | None]:
        """Owners of the rows of each part; None where no column names them.

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
        known = [name for name in (*self.label_columns, self.client) if name is not None]
        left_out: list[str] = []
        if self.named is not None:
            inputs = list(map(str, self.named))
            others = [name or "''" for name in frames[0] if name not in (*known, *inputs)]
            if others:
                left_out.append(f"columns that are not among the inputs: {_listed(others)}")
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
                    f"({_listed(more)}); take them out, or name the inputs "
                    "(dataset.inputs)"
                )
        for name in inputs:
            if _LIKE_AN_ID.fullmatch(name):
                raise DataError(
                    f"{places[0]}: column {name!r} looks like a row's number or id, and would be "
                    "an input of the model; name the inputs (dataset.inputs)"
                )
        if not inputs:
            raise DataError(f"{places[0]}: holds no input columns; it has {_listed(frames[0])}")

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
            if blanks.allowed and any(kind_of(frame[name]) is list for name in inputs):
                images.append(joined_lists(frame[list(inputs)], self.channels, place, blanks))
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
        """A column as its schema says, if it says anything, else as ``read`` reads it."""
        known = (self.schema or {}).get(str(column.name), {})
        if "list" in known:
            return places_in(known["list"], column, place, blanks)
        if "range" in known:
            low, high = known["range"]
            return numbers_in_range(low, high, column, place, blanks)
        return read(column, place, blanks)

    def _reader(self, columns: Sequence[pandas.Series], blanks: Blanks) -> Reader:
        """Reader of the only input column, by its content in all parts.

        Texts that are mostly numbers are numbers, so that a wrong one is refused and not hashed.
        Where a row may be blank, no other row says what it is: the shape of an example does.
        """
        kind = kind_of(columns[0])
        if kind is dict:
            return self._pictures
        if kind is str and blanks.allowed:
            return self._texts if self.length > 1 else numbers_of
        if kind is str:
            texts = chain(*(cells_of(column) for column in columns))
            if not are_mostly_numbers([text for text in texts if isinstance(text, str)]):
                return self._texts
        return numbers_of

    def _texts(self, column: pandas.Series, place: str, blanks: Blanks = STRICT) -> Images:
        texts = cells_of(column)
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                blanks.add(row, DataError(f"{place}: has no text in row {row} (from 0)"))
                texts[row] = ""
        if self.tokenizer is not None:
            return encoded(texts, self.tokenizer, self.length)
        return padded(map(hashed_words(self.vocabulary), texts), len(texts), self.length)

    def _pictures(self, column: pandas.Series, place: str, blanks: Blanks = STRICT) -> Images:
        """The pictures of a column's cells, (N, C, H, W) in [0, 1]."""
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        images = np.zeros((len(column), self.channels, height, width), np.float32)
        for row, picture in enumerate(cells_of(column)):
            at = f"{place}, row {row} (from 0)"
            with blanks.of(row):
                images[row] = read_stored(picture, height, width, self.channels, at)
        return images / np.float32(255)


@dataclass(frozen=True, eq=False)
class Split:
    """One part of a data set, as ``ColumnSpec.read`` gives it.

    Attributes:
        examples: inputs and labels.
        owners: whose each example is, as text; None where no column says so.
        classes: names of the classes in the order of their numbers, or of several labels.
        inputs: columns that a model sees.
        left_out: what was not used, and why.
        texts: whether inputs are numbers of words.
        named: whether somebody has named the classes, or they are those found.
        objective: the task that the labels are of.
    """

    examples: Examples
    owners: list[str] | None
    classes: tuple[str, ...]
    inputs: tuple[str, ...]
    left_out: tuple[str, ...]
    texts: bool = False
    named: bool = False
    objective: Objective = CLASSIFICATION

    def thinned(self, most: int, seed: int) -> Split:
        """A copy with at most ``most`` rows of each owner."""
        assert self.owners is not None
        rows = examples.few_of_each(examples.numbered_owners(self.owners)[0], most, seed)
        owners = [self.owners[row] for row in rows]
        return replace(self, examples=self.examples.take(rows), owners=owners)


def _listed(names: Iterable[str]) -> str:
    """Names of columns for an error, the first ones where they are many."""
    return cells.listed(names, _MAX_NAMES_SHOWN)


def _row_of(place: str, row: int) -> str:
    """File and number of a row, for errors."""
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


def _no_column(name: str, names: Iterable[str], place: str) -> DataError:
    """The refusal of a column that a table lacks, with the quotes that its name in YAML lacks."""
    known = list(names)
    for word in known:
        if word != name and cells.unquoted(word) == name:
            return DataError(
                f"{place}: has no column {name!r}, as which YAML reads {word} without quotes; "
                f"write '{word}' with the quotes"
            )
    return DataError(f"{place}: has no column {name!r}; it has {_listed(known)}")


def _unnamed(names: Iterable[str], place: str) -> list[str]:
    """The columns that pandas has written for itself: before all others, or a kept index."""
    kept = [name for name in names if _INDEX.fullmatch(name)]
    rest = [name for name in names if name not in kept]
    first = list(takewhile(_UNNAMED.fullmatch, rest))
    for name in rest[len(first) :]:
        if _UNNAMED.fullmatch(name):
            raise DataError(f"{place}: has a column without a name ({name!r}); name it")
    return [*kept, *first]
