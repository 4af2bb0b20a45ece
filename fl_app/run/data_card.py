"""The data card: what was understood of the data, before anybody trains.

A few lines say where the data come from, how many rows each split has, whose they are, the classes
by name with their counts, what a model sees, what was left out, and how the rest is shared out. A
person sees at once that there are four classes where he has two.

All of these are facts of the data, and no budget covers them. A card holds counts and names, never
a row, and since the least value of a feature is somebody's cell, ranges are rounded outwards to one
digit. A run's folder keeps the card; `murmur report --publish` leaves it out. Of a device's data
only `murmur doctor device` makes one: for its owner, written nowhere. ``rows_shown`` shows single
rows as they were understood; nothing keeps them.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from pydantic import TypeAdapter

from fl_app.config.errors import ConfigError
from fl_app.run.card_text import Spread, between, fitted, number, short
from fl_app.run.population import Described, Population, described, image_population, is_by_owner
from murmur.format import printable
from murmur.learning.data import datasets
from murmur.learning.data.examples import Dataset, Examples
from murmur.learning.data.shards import ClientShards, DisjointShards

HEADING = "facts of the data, covered by no ε"
MAX_LINES = 12
MAX_WIDTH = 100

_INDENT = 10  # cells before the text of a line
_MAX_ROW_LINES = 8  # of a row's numbers
_MAX_DRAWN = 32  # cells of a drawn picture's width
_SHADES = " .:-=+*#%@"  # from black to white, on a dark terminal
_PLACES = ("name", "path", "root", "test_path", "train", "test")  # settings that say where
_BLOCK_EXAMPLES = 256  # examples whose bounds are looked for at a time

Kind = Literal["numbers", "texts", "pictures", "arrays"]


@dataclass(frozen=True)
class SplitRows:
    """How many rows each split has.

    Attributes:
        training: in none of the other splits.
        pool: public.
        validation: of nobody, to score models on.
        test: the data set's own, or held out of it.
    """

    training: int
    pool: int
    validation: int
    test: int

    def __iter__(self) -> Iterator[int]:
        return (getattr(self, name) for name in SPLITS)


SPLITS = tuple(field.name for field in fields(SplitRows))


@dataclass(frozen=True)
class ClassRows:
    """A class.

    Attributes:
        name: as its label says.
        rows: that have it.
    """

    name: str
    rows: SplitRows


@dataclass(frozen=True)
class Column:
    """A column that a model sees.

    Attributes:
        name: of the column.
        low, high: between which its numbers lie, rounded outwards; None: it is no single number.
    """

    name: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Clients:
    """A partition's shape.

    Attributes:
        partition: its class and settings.
        count: how many clients there are.
        rows: of one client.
        classes: of one client; None: there are none, or it draws its rows whenever it is asked.
    """

    partition: str
    count: int
    rows: Spread
    classes: Spread | None


@dataclass(frozen=True)
class DataCard:
    """Summary of the data as they were read.

    Attributes:
        source: where they come from.
        is_own: whether they are a user's own, and no set that Murmur knows by name.
        rows: of all classes.
        owners: whose rows are not in the test set; None: nothing says whose a row is.
        owner_rows: of one owner.
        classes: in the order of their numbers; of several labels, the rows that have each.
        kind: of an input.
        shape: (C, H, W) of an input.
        words: of a text; None: inputs are no texts.
        low, high: between which all numbers lie, rounded outwards.
        columns: that a model sees; none where the data are no table.
        left_out: what was not used, and why.
        clients: None: their data are not here, or these are one client's own.
        task: what labels are (``murmur.learning.objective``).
        label_range: of a regression's labels, public.
    """

    source: str
    is_own: bool
    rows: SplitRows
    owners: int | None
    owner_rows: Spread | None
    classes: tuple[ClassRows, ...]
    kind: Kind
    shape: tuple[int, int, int]
    words: Spread | None
    low: float
    high: float
    columns: tuple[Column, ...]
    left_out: tuple[str, ...]
    clients: Clients | None
    task: str = "classification"
    label_range: tuple[float, float] | None = None

    def __str__(self) -> str:
        return "\n".join([HEADING, *self.lines()])

    def lines(self, width: int = MAX_WIDTH) -> list[str]:
        """At most ``MAX_LINES`` - 1 lines, since a heading may stand above them.

        Args:
            width: cells of a line at most, if they are no more than ``MAX_WIDTH``. What does not
                fit is counted.
        """
        room = max(min(width, MAX_WIDTH) - _INDENT, 1)
        left_out = [printable(reason).split() for reason in self.left_out] or [["nothing"]]
        inputs = self._input()
        if self.columns:
            inputs += ":"
        parts = {
            "data": [short(self.source, room)],
            "rows": fitted(self._rows(), room, 2),
            "owners": fitted([self._owners().split()], room, 1),
            self._labels(): [],
            "inputs": fitted(self._columns(), room, 2, inputs),
            "left out": fitted(left_out, room, 2, mark=";"),
        }
        if self.clients is not None:
            parts["clients"] = fitted([self._clients(self.clients).split()], room, 1)
        head = self._predicted()
        if self.classes:
            head += f", as {'/'.join(self._of_filled(SPLITS))}:"
        rest = MAX_LINES - 1 - sum(map(len, parts.values()))
        parts[self._labels()] = fitted(self._classes(), room, rest, head)
        return [
            f"{'' if place else label:{_INDENT}}{text}"
            for label, texts in parts.items()
            for place, text in enumerate(texts)
        ]

    def shown(self, width: int) -> list[str]:
        """Returns the lines printed before a run: all for a user's own data, else one."""
        if self.is_own:
            return self.lines(width)
        rows = ", ".join(chain(*self._rows()))
        predicted = f"{self._predicted()} {self._labels()}"
        said = [self.source, rows, predicted, self._input(), *self.left_out]
        return [f"data: {'; '.join(said)}"]

    def to_json(self) -> bytes:
        """As a run's folder keeps it, below its heading."""
        told = {"heading": HEADING, **asdict(self)}
        return json.dumps(told, indent=1, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, content: bytes) -> "DataCard":
        """Reads the output of ``to_json``; ValueError for anything else."""
        return TypeAdapter(cls).validate_json(content, strict=True)

    def _labels(self) -> str:
        """What labels are called."""
        return "classes" if self.task == "classification" else "labels"

    def _predicted(self) -> str:
        """How many classes or labels, or between which numbers a label lies."""
        if self.label_range is None:
            return f"{len(self.classes):,}"
        low, high = self.label_range
        return f"numbers in the public range {number(low)} to {number(high)}"

    def _rows(self) -> list[list[str]]:
        """How many rows each split has."""
        return [[f"{name} {count:,}"] for name, count in zip(SPLITS, self.rows, strict=True)]

    def _of_filled(self, each: Iterable[Any]) -> list[Any]:
        """Selects from ``each``, one item per split, those of splits that have a row."""
        return [of_split for of_split, count in zip(each, self.rows, strict=True) if count]

    def _owners(self) -> str:
        """Describes the owners of the rows: their number and the rows of each."""
        if self.owners is None or self.owner_rows is None:
            return "nothing says whose a row is"
        return f"{self.owners:,}, {between(self.owner_rows, 'row', 'rows')} each, test rows aside"

    def _classes(self) -> list[list[str]]:
        """Each class with its rows; first those that a split lacks, which must be seen."""
        shown = []
        for each in sorted(self.classes, key=lambda each: 0 not in self._of_filled(each.rows)):
            counts = "/".join(f"{count:,}" for count in self._of_filled(each.rows))
            shown.append([f"{short(each.name)}: {counts}"])
        return shown

    def _input(self) -> str:
        """Describes one input: its kind, shape and range."""
        channels, height, width = self.shape
        within = f"within {number(self.low)} to {number(self.high)}"
        if self.kind == "numbers":
            return f"{channels:,} numbers {within}"
        if self.kind == "texts":
            words = between(self.words or (0, 0), "word", "words")
            return f"texts of {words}, cut at {width:,}"
        size = f"{height:,} × {width:,}"
        if self.kind == "pictures":
            size += ", grey" if channels == 1 else ", in colours"
        else:
            size = f"{channels:,} × {size}"
        return f"{self.kind} of {size}, {within}"

    def _columns(self) -> list[list[str]]:
        """The columns that a model sees."""
        shown = []
        for column in self.columns:
            name = short(column.name)
            if column.low is not None and column.high is not None:
                name += f" {number(column.low)} to {number(column.high)}"
            shown.append([name])
        return shown

    def _clients(self, clients: Clients) -> str:
        """How the partition has shared out the rows."""
        each = between(clients.rows, "row", "rows")
        if clients.classes is not None:
            each += f" and {between(clients.classes, 'class', 'classes')}"
        return f"{clients.count:,}, {each} each: {printable(clients.partition)}"


def data_card(config: DictConfig) -> DataCard:
    """The card of the run that ``config`` describes, before any features are computed.

    Raises:
        ConfigError: the data cannot be read, or the settings do not fit them.
    """
    return _data_card(described(config))


@lru_cache(maxsize=2)
def _data_card(description: Described) -> DataCard:
    config = description.config
    people = image_population(config)
    data = people.dataset
    node = OmegaConf.to_container(config.dataset, resolve=True)
    assert isinstance(node, dict)
    target = str(node["_target_"])
    is_own = target.rpartition(".")[0] != datasets.__name__
    source = data.name
    if is_own:
        places = [f"{key}={node[key]}" for key in _PLACES if isinstance(node.get(key), str)]
        source = " ".join([target.rpartition(".")[2], *places])
    split = np.zeros(len(data.train), np.int64)
    split[people.public_rows] = SPLITS.index("pool")
    split[people.held_out] = SPLITS.index("validation")
    splits = [data.train.labels[split == place] for place in range(3)]
    left_out = [*data.notes, *_unused(people, len(splits[0]), config)]
    clients = None
    if len(people.shards):
        clients = _shape(people, config.partition)
    return _card(data, source, is_own, [*splits, data.test.labels], left_out, clients)


def card_of_own(data: Dataset, source: str) -> DataCard:
    """The card of one client's own data, as its owner's device reads them.

    Args:
        data: all for training. Its blank rows are left out.
        source: where they lie.
    """
    left_out = list(data.notes)
    if data.blanks:
        left_out.append(f"{len(data.blanks):,} rows that cannot be read: they are blank records")
        rows = np.setdiff1d(np.arange(len(data.train)), list(data.blanks))
        data = replace(data, train=data.train.take(rows), blanks={})
    nobody = data.train.labels[:0]
    splits = [data.train.labels, nobody, nobody, nobody]
    return _card(data, source, True, splits, left_out, None)


def _card(
    data: Dataset,
    source: str,
    is_own: bool,
    splits: Sequence[NDArray[Any]],
    left_out: Sequence[str],
    clients: Clients | None,
) -> DataCard:
    """The card of a data set whose ``splits``, in the order of ``SPLITS``, have these labels."""
    label_range = None
    if data.objective.kind == "regression":
        label_range = (data.objective.low, data.objective.high)
    owners = None
    owner_rows = None
    if data.owners is not None and len(data.owners):
        sizes = np.unique(data.owners, return_counts=True)[1]
        owners = len(sizes)
        owner_rows = _spread(sizes)
    kind = _kind(data)
    words = None
    if kind == "texts" and _parts(data):
        lengths = [np.count_nonzero(part.images, axis=(1, 2, 3)) for part in _parts(data)]
        words = _spread(np.concatenate(lengths))
    low, high = _bounds([part.images for part in _parts(data)])
    return DataCard(
        source=source,
        is_own=is_own,
        rows=SplitRows(*map(len, splits)),
        owners=owners,
        owner_rows=owner_rows,
        classes=_class_rows(data, splits),
        kind=kind,
        shape=data.input_shape,
        words=words,
        low=low,
        high=high,
        columns=_columns_of(data),
        left_out=tuple(left_out),
        clients=clients,
        task=data.objective.kind,
        label_range=label_range,
    )


def _class_rows(data: Dataset, splits: Sequence[NDArray[Any]]) -> tuple[ClassRows, ...]:
    """Each class with its rows, or each of several labels with the rows that have it."""
    if data.objective.kind == "regression":
        return ()
    names: list[str] = [*(data.classes or ())]
    if data.objective.has_classes:
        found = 1 + max(int(labels.max(initial=-1)) for labels in splits)
        count = max(len(names) or data.num_classes, found)
        names += map(str, range(len(names), count))
        counts = np.stack([np.bincount(labels, minlength=count) for labels in splits], axis=1)
    else:
        ones = [np.count_nonzero(labels, axis=0) for labels in splits]
        counts = np.stack(ones, axis=1)
    return tuple(map(ClassRows, names, (SplitRows(*rows) for rows in counts.tolist())))


def _parts(data: Dataset) -> list[Examples]:
    """Returns the training and test examples, without empty splits."""
    return [part for part in (data.train, data.test) if len(part)]


def _kind(data: Dataset) -> Kind:
    channels, height, width = data.input_shape
    if data.texts:
        return "texts"
    if height == width == 1:
        return "numbers"
    if channels in (1, 3) and height > 1 and width > 1:
        return "pictures"
    return "arrays"


def _columns_of(data: Dataset) -> tuple[Column, ...]:
    """The columns of a table; ranges of those that are one number each."""
    if len(data.columns) != data.input_shape[0] or _kind(data) != "numbers":
        return tuple(map(Column, data.columns))
    found = []
    for place, name in enumerate(data.columns):
        low, high = _bounds([part.images[:, place] for part in _parts(data)])
        found.append(Column(name, low, high))
    return tuple(found)


def _unused(people: Population, private: int, config: DictConfig) -> list[str]:
    """Training rows that nobody has, and why.

    Args:
        people: who has which rows.
        private: how many rows are in no other split.
        config: of the run.
    """
    if config.federation.pilot is not None:
        return [f"{private:,} training rows: a pilot draws clients' rows from the pool"]
    if not len(people.shards):
        return [f"{private:,} training rows: clients' data are on their devices"]
    if not isinstance(people.shards, DisjointShards):
        return []
    unused = private - int(people.shards.sizes.sum())
    if not unused:
        return []
    owners = people.dataset.owners
    if owners is None or not is_by_owner(config.partition):
        return [f"{unused:,} training rows, which the partition gives to no client"]
    others = np.union1d(people.public_rows, people.held_out)
    known = len(np.unique(np.delete(owners, others)))
    clients = len(people.shards)
    return [
        f"{unused:,} training rows of {known - clients:,} owners who are no clients: "
        f"seed={config.seed} draws {clients:,} of {known:,}"
    ]


def _shape(people: Population, node: DictConfig) -> Clients:
    """Describes the clients that a partition has made: their rows and their classes."""
    shares = people.shards
    assert isinstance(shares, ClientShards)
    classes = None
    if isinstance(shares, DisjointShards) and people.dataset.objective.has_classes:
        holders = np.repeat(np.arange(len(shares)), shares.sizes)
        labels = people.dataset.train.labels[shares.rows]
        held = np.unique(holders * people.dataset.num_classes + labels)
        classes = _spread(np.bincount(held // people.dataset.num_classes))
    plain = OmegaConf.to_container(node, resolve=True)
    assert isinstance(plain, dict)
    name = str(plain.pop("_target_")).rpartition(".")[2]
    chosen = {str(key): value for key, value in plain.items() if value is not None}
    settings = ", ".join(f"{key}={value}" for key, value in chosen.items())
    partition = f"{name}({settings})" if settings else name
    return Clients(partition, len(shares), _spread(shares.sizes), classes)


def _spread(counts: NDArray[np.integer[Any]]) -> Spread:
    """The fewest and the most of ``counts``."""
    return int(counts.min()), int(counts.max())


def _bounds(parts: Sequence[NDArray[np.float32]]) -> tuple[float, float]:
    """Numbers of one digit between which all of ``parts`` lie; 0 and 0 without any."""
    if not parts:
        return 0.0, 0.0
    least, greatest = math.inf, -math.inf
    for part in parts:
        for start in range(0, len(part), _BLOCK_EXAMPLES):
            block = part[start : start + _BLOCK_EXAMPLES]  # small enough for a processor's cache
            least = min(least, float(block.min()))
            greatest = max(greatest, float(block.max()))
    return _outwards(least, ROUND_FLOOR), _outwards(greatest, ROUND_CEILING)


def _outwards(value: float, rounding: str) -> float:
    """``value`` with one digit; six are what 32 bits surely have."""
    return float(Context(prec=1, rounding=rounding).plus(Decimal(f"{value:.6g}")))


def rows_shown(config: DictConfig, count: int, width: int) -> list[str]:
    """Lines with ``count`` training rows as they were understood, evenly apart.

    For a terminal of ``width`` cells only: they are the data themselves.

    Raises:
        ConfigError: as ``data_card``.
    """
    data = image_population(config).dataset
    last = len(data.train) - 1
    lines = []
    for row in np.unique(np.linspace(0, last, min(count, last + 1)).astype(int)).tolist():
        said = _label_shown(data, row)
        owner = f", owner {data.owners[row]}" if data.owners is not None else ""
        lines += [f"row {row:,} (from 0): {said}{owner}", *_drawn(data, row, width)]
    return lines


def _label_shown(data: Dataset, row: int) -> str:
    """A row's label in words."""
    label = data.train.labels[row]
    if data.objective.kind == "regression":
        return f"label {number(float(label))}"
    names = data.classes or ()
    if data.objective.kind == "multilabel":
        held = [names[number] if names else str(number) for number in np.flatnonzero(label)]
        return f"labels {', '.join(map(short, held)) or 'none'}"
    return f"class {short(names[label] if names else str(label))}"


def owners_shown(config: DictConfig) -> list[str]:
    """A line for each owner, by id: which client it is, or what else became of its rows.

    For a terminal only: ids are the data's own.

    Raises:
        ConfigError: as ``data_card``, or nothing says whose a row is.
    """
    people = image_population(config)
    data = people.dataset
    if data.owners is None:
        raise ConfigError(
            "--owners: nothing says whose a row is; name the column (dataset.client) or, of "
            "pictures, the levels of folders (dataset.owners)"
        )
    nobody, pool, validation = -1, -2, -3
    roles = {nobody: "no client", pool: "public pool", validation: "validation"}
    whose = np.full(len(data.train), nobody)
    for client in range(len(people.shards)):
        whose[people.shards[client]] = client
    whose[people.public_rows] = pool
    whose[people.held_out] = validation
    lines = dict.fromkeys(data.test_owner_ids, "test set")
    for at, owner in enumerate(data.owner_ids):
        held, counts = np.unique(whose[data.owners == at], return_counts=True)
        said = [
            f"{roles.get(place, f'client {place}')} ({between((count, count), 'row', 'rows')})"
            for place, count in zip(held.tolist(), counts.tolist(), strict=True)
        ]
        lines[owner] = ", ".join([*said, *filter(None, [lines.get(owner)])])
    return [f"owner {printable(owner)}: {lines[owner]}" for owner in sorted(lines)]


def _drawn(data: Dataset, row: int, width: int) -> list[str]:
    """A row's inputs, as a picture or as numbers."""
    values = data.train.images[row]
    if _kind(data) == "pictures":
        grey = values.mean(axis=0)
        step = max(1, -(-grey.shape[1] // min(_MAX_DRAWN, width // 2)))
        levels = (np.clip(grey[::step, ::step], 0, 1) * (len(_SHADES) - 1)).round().astype(int)
        return ["".join(2 * _SHADES[level] for level in line) for line in levels]
    numbers = values.reshape(-1)
    if data.texts:
        numbers = numbers[numbers != 0]
    shown = [f"{value:.7g}" for value in numbers.tolist()]
    if len(data.columns) == len(shown) and _kind(data) == "numbers":
        shown = [f"{short(name)} {text}" for name, text in zip(data.columns, shown, strict=True)]
    return fitted([[text] for text in shown], width, _MAX_ROW_LINES)
