"""A device's own data: what its owner's node-config names, and nothing that a server names.

``data=PATH`` is a folder of pictures, an .npz or a .csv file (``murmur.learning.data.own_data``),
or, where ``inputs`` names columns, a table: a CSV or Parquet file or a folder that ``datasets`` has
saved (``murmur.learning.data.tables``). With several clients on one node ``{client}`` in it stands
for the id. All of it is that client's data.
``public=FILE.npz`` is the device's copy of the run's public pool, where a run has one. What data
must be like (``shape``, ``classes``, ``sizes``) is set by the owner too.

Nothing that lies in a client's files is a refusal, which a server would see: rows that do not fit
the owner's words are blank records, of which the owner is told. What is wrong with the words
themselves is one, before any file is opened.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf

from fl_app.config.compose import installed
from fl_app.config.groups import groups
from fl_app.config.settings import DeviceDataSpec, pool_digest
from fl_app.device.agreement import listed
from fl_app.device.node_settings import DeviceError, OwnerSettings
from fl_app.run.population import Population
from murmur.learning.data import own_data, tables
from murmur.learning.data.blanks import Blanks
from murmur.learning.data.cells import nfc
from murmur.learning.data.datasets import DataError, Dataset, Examples
from murmur.learning.data.examples import LocalData
from murmur.learning.data.npz_arrays import read_npz
from murmur.learning.features.components import (
    Components,
    Features,
    Fitted,
    Known,
    with_components,
)
from murmur.round.task import log_error

Schema = Mapping[str, Mapping[str, Any]]
"""What is known in public of each column of a table (``murmur.learning.features.bins``)."""

_SHOWN = 5  # blank rows that are told one by one


def device_population(
    owner: OwnerSettings, terms: DeviceDataSpec, features: Features | None = None
) -> Population:
    """All that a device knows before it opens a client's data.

    Args:
        owner: who must name data, and say of what form they are.
        terms: what the run says of the form, where that is not the owner's to say.
        features: what the run makes of images, if anything.

    Raises:
        DeviceError: the owner's words lack something, or the public pool is not the run's.
    """
    if owner.data is None:
        raise DeviceError("this device's node-config names no data (data=PATH)")
    if terms.shape is None or not terms.num_classes:
        raise DeviceError(
            "this device's node-config does not say what its data are like (shape=, and classes=, "
            "label_range= or labels=)"
        )
    if len(owner.clients) > 1 and "{client}" not in owner.data:
        raise DeviceError("this device hosts several clients; its data=PATH must hold {client}")
    channels, height, width = terms.shape
    shape = (channels, height, width)
    nothing = _no_examples(terms)
    dataset = Dataset(
        "this device's data",
        nothing,
        nothing,
        terms.num_classes,
        shape,
        objective=terms.objective,
    )
    sizes = None
    if terms.sizes is not None:
        sizes = tuple(terms.sizes)
    nowhere = np.zeros(0, np.int64)
    images = Population(dataset, public_pool(owner, terms), (), sizes, nowhere)
    if features is None:
        return images
    return _featured(images, features, owner, terms)


def _featured(
    people: Population, features: Features, owner: OwnerSettings, terms: DeviceDataSpec
) -> Population:
    """``people`` with features for images, by the components in the copy of the public pool.

    Where that copy holds none they are fitted here, which gives the same where the processor does.
    """
    fitted: Fitted | None = features.known
    if fitted is None:
        if owner.public is None:
            raise DeviceError("features need what they were fitted with; name a copy (public=FILE)")
        fitted = Components.of(read_npz(Path(owner.public).expanduser()))
    if fitted is None:
        fitted = features.fit(people.public)
    if fitted.digest != terms.features:
        raise DeviceError("the features of this device's public pool are not those of the run")
    schema = schema_in(fitted)
    if schema is not None:
        _require_columns(list(schema), owner, terms)
    dataset = with_components(people.dataset, features, fitted)
    public = features.apply(fitted, people.public)
    return replace(people, dataset=dataset, public=public, fitted=fitted)


def schema_in(fitted: Fitted | None) -> Schema | None:
    """The schema by which a run's features read tables; None: they read none."""
    return fitted.schema if isinstance(fitted, Known) else None


def _require_columns(schema: list[str], owner: OwnerSettings, terms: DeviceDataSpec) -> None:
    """DeviceError unless a schema is of the columns that the owner names, if he names any."""
    if owner.inputs is not None and _names(owner.inputs) != _names(schema):
        raise DeviceError(
            f"inputs in this device's node-config: must be the columns of the schema in its conf/, "
            f"{','.join(schema)}"
        )
    if terms.shape != [len(schema), 1, 1]:
        raise DeviceError(
            f"shape in this device's node-config: must be '{len(schema)},1,1', one number for each "
            "column of the schema in its conf/"
        )


@dataclass
class OwnData:
    """The data of a device's clients, each opened when it is first needed and then kept.

    A ``murmur.round.site.Data``: the host opens them after the policy's word and before the charge.
    Whatever lies in the owner's files, a client has data: one row that cannot be read is a blank
    record, for itself alone, and all are where the whole cannot be. The owner is told in the
    device's log; ``look`` tells it at the start of a device, and `murmur doctor device`.

    Args:
        owner: whose words name the data.
        terms: what the run asks of them.
        folder: the device's, for its log and for decoded images, which only the owner can read.
        features: what the run makes of images. None: they stay as they are.
        fitted: the components with which it does; None where ``features`` is.
        schema: by which a table's columns are read; None: as numbers.
    """

    owner: OwnerSettings
    terms: DeviceDataSpec
    folder: Path
    features: Features | None = None
    fitted: Fitted | None = None
    schema: Schema | None = None
    _opened: dict[int, LocalData] = field(default_factory=dict)

    def of(self, client: int) -> LocalData:
        """The data of ``client``, opened once: images (n, C, H, W) or features, and labels.

        n is the published number where there is one: what is missing is blank, and what is too much
        is left out from the end.

        Args:
            client: one of the owner's.

        Raises:
            DataError: sizes are published, but not this client's.
            ValueError: no features of any images can be computed. Both whatever the files hold.
        """
        if client not in self._opened:
            self._opened[client] = self._data_of(self._found(client), client)
        return self._opened[client]

    def blank(self, client: int) -> LocalData:
        """As many blank records as ``client`` has published, or one.

        Zeros with label 0, or the features of zeros. A client answers with them where none of its
        data can be read or trained on: whether a device answers must not depend on its data.
        """
        return self._data_of(_no_examples(self.terms), client)

    def place(self, client: int) -> str:
        """Where the data of ``client`` lie."""
        return str(self.owner.data).replace("{client}", str(client))

    def read(self, client: int, blanks: bool = True) -> Dataset:
        """Reads the owner's files of ``client`` (``load_own``)."""
        cache = self.folder / "cache"
        return load_own(self.place(client), self.owner, self.terms, cache, self.schema, blanks)

    def look(self, client: int) -> Dataset:
        """``read``, for the owner, who can mend what a run would answer with blank records.

        Raises:
            DataError: no row can be read, or there are more or fewer than were published.
            DataError, ValueError, OSError: as ``read``.
        """
        found = self.read(client)
        count, size = len(found.train), self._size(client)
        if len(found.blanks) == count:
            why = next(iter(found.blanks.values()), "there are none")
            raise DataError(f"none of the {count} examples of client {client} can be read: {why}")
        if size not in (None, count):
            raise DataError(
                f"client {client} has {count} examples, its owner has published {size}; mend the "
                "data, or sizes= of every device"
            )
        return found

    def _found(self, client: int) -> Examples:
        """All that can be read; the owner is told of the rest."""
        try:
            found = self.read(client)
        except Exception as error:  # of whatever kind: it is about what lies in a file
            log_error(self.folder, f"the data of client {client}, now blank records", error)
            return _no_examples(self.terms)
        if found.blanks:
            said = DataError(in_short(found.blanks, len(found.train)))
            log_error(self.folder, f"the data of client {client}", said)
        return found.train

    def _data_of(self, found: Examples, client: int) -> LocalData:
        """``found`` in the published number, or at least one, with the run's features."""
        size = self._size(client) or max(1, len(found))
        if len(found) and len(found) != size:
            said = DataError(f"there are {len(found)} examples, {size} are published")
            log_error(self.folder, f"the data of client {client}", said)
        images, labels = found.images[:size], found.labels[:size]
        if len(images) < size:
            lacking = size - len(images)
            zeros = np.zeros((lacking, *images.shape[1:]), np.float32)
            images = np.concatenate([images, zeros])
            blank = self.terms.objective.blank_labels(lacking, self.terms.num_classes)
            labels = np.concatenate([labels, blank])
        seen = images
        if self.features is not None and self.fitted is not None:
            seen, labels = self._seen(images, labels, client)
        return LocalData(seen, labels, np.arange(size), sources=images)

    def _seen(
        self, images: NDArray[np.float32], labels: NDArray[Any], client: int
    ) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """The run's features of ``images``, and ``labels``; rows that have none are blank."""
        assert self.features is not None and self.fitted is not None
        bad = Blanks(allowed=True)
        try:
            found = self.features.rows(self.fitted, images, bad)
        except Exception as error:  # of no single row
            log_error(self.folder, f"the features of client {client}, now blank records", error)
            return self.features.apply(self.fitted, np.zeros_like(images)), labels * 0
        if bad.rows:
            said = DataError(in_short(bad.rows, len(images)))
            log_error(self.folder, f"the features of client {client}", said)
            labels = labels.copy()
            bad.clear(labels)
        return found, labels

    def _size(self, client: int) -> int | None:
        """How many examples were published; None: nothing was. DataError: not of this client."""
        sizes = self.terms.sizes
        if sizes is None:
            return None
        if client >= len(sizes):
            raise DataError(f"sizes in this device's node-config: lacks client {client}")
        return sizes[client]


def _no_examples(terms: DeviceDataSpec) -> Examples:
    """No examples, of the owner's shape and task."""
    shape = tuple(terms.shape or ())
    labels = terms.objective.blank_labels(0, terms.num_classes)
    return Examples(np.zeros((0, *shape), np.float32), labels)


def require_readable(node_config: Mapping[str, Any], folder: Path) -> None:
    """Refuse to start on data that a run would answer with blank records.

    Single rows are told in the log of ``folder``, the device's, and a column of which a schema
    knows no cell: a run would take all of them for any other value. What the owner's words lack is
    found where a run asks.

    Raises:
        DeviceError: a client's data cannot be read as a whole, or not a row of them.
    """
    owner = OwnerSettings.of(node_config)
    terms = terms_of(owner)
    if owner.data is None or terms.shape is None or not terms.num_classes:
        return
    data = OwnData(owner, terms, folder, schema=schema_of(owner))
    for client in owner.clients:
        try:
            found = data.look(client)
        except Exception as error:  # of whatever kind: it is about what lies in a file
            raise DeviceError(
                f"the data of client {client} cannot be read: {error} (murmur doctor device)"
            ) from error
        if found.blanks:
            said = DataError(in_short(found.blanks, len(found.train)))
            log_error(folder, f"the data of client {client}", said)
        elif data.schema is not None:
            _tell_of_columns(data, client)


def _tell_of_columns(data: OwnData, client: int) -> None:
    """Log what a researcher would be told of the columns of a table without a bad row."""
    try:
        data.read(client, blanks=False)
    except (DataError, ValueError) as error:
        log_error(data.folder, f"the data of client {client}", error)


def terms_of(owner: OwnerSettings) -> DeviceDataSpec:
    """Returns the form of the data in the owner's words; ValueError where that cannot be."""
    return DeviceDataSpec(
        listed(owner.shape),
        listed(owner.classes),
        sizes=listed(owner.sizes),
        label_range=listed(owner.label_range),
        labels=listed(owner.labels),
    )


def schema_of(owner: OwnerSettings) -> Schema | None:
    """The schema in conf/features of the columns that the owner names; None: none is of these."""
    if owner.inputs is None:
        return None
    for name in groups()["features"]:
        told = OmegaConf.to_container(installed((f"features={name}",)).features)
        schema = told.get("schema") if isinstance(told, dict) else None
        if isinstance(schema, dict) and _names(schema) == _names(owner.inputs):
            return schema
    return None


def _names(columns: Iterable[str | int]) -> set[str]:
    """Names of columns as they are compared: a schema may have numbers."""
    return {nfc(str(name)) for name in columns}


def in_short(blanks: Mapping[int, str], count: int) -> str:
    """How many of ``count`` rows are blank, and why the first of them are, in one line."""
    rows = sorted(blanks)
    shown = "; ".join(f"row {row} (from 0): {blanks[row]}" for row in rows[:_SHOWN])
    more = "; ..." if len(rows) > _SHOWN else ""
    return f"{len(rows)} of {count} rows cannot be read and are blank: {shown}{more}"


def load_own(
    path: str,
    owner: OwnerSettings,
    terms: DeviceDataSpec,
    cache: Path,
    schema: Schema | None = None,
    blanks: bool = True,
) -> Dataset:
    """One client's examples, all for training, read row by row as the owner's words say.

    Args:
        path: a folder of pictures, an .npz, a .csv, or where the owner names columns a table.
        owner: the names of columns, if any.
        terms: shape and classes that the examples must have.
        cache: folder for decoded images.
        schema: of a table's columns; None: they are numbers.
        blanks: whether single rows that cannot be read are blank (``Dataset.blanks``); False: what
            a researcher would be told of them, and of whole columns.

    Raises:
        DataError: they do not fit; ValueError, OSError: they cannot be read.
    """
    assert terms.shape is not None
    place = Path(path).expanduser()
    if owner.inputs is None:
        found = _images(place, terms, cache, blanks)
    else:
        found = _columns(place, owner, terms, schema, blanks)
    if found.input_shape != tuple(terms.shape):
        raise DataError(
            f"{place}: examples are {list(found.input_shape)}, not {list(terms.shape)} "
            "(channels, height, width)"
        )
    if found.objective != terms.objective or found.num_classes != terms.num_classes:
        raise DataError(
            f"{place}: its labels have {found.num_classes} outputs of "
            f"task={found.objective.kind}, not {terms.num_classes} of task={terms.objective.kind}"
        )
    return found


def _images(place: Path, terms: DeviceDataSpec, cache: Path, blanks: bool) -> Dataset:
    """By the reader for the file's suffix; a folder is one of pictures by class."""
    assert terms.shape is not None
    channels, height, width = terms.shape
    size = [height, width]
    rest: dict[str, Any] = {"test_fraction": 0.0, "cache": cache, "blanks": blanks}
    classes = _classes(terms)
    match place.suffix.lower():
        case ".npz":
            count = terms.num_classes if terms.objective.has_classes else None
            rest |= {"task": terms.objective.kind, "label_range": terms.label_range}
            return own_data.npz(path=place, num_classes=count, **rest)
        case ".csv":
            return own_data.csv(
                path=place,
                shape=terms.shape,
                size=size,
                channels=channels,
                classes=classes,
                **rest,
            )
        case ".parquet":
            raise DataError(f"{place}: the node-config must name its columns (inputs=, label=)")
        case _:
            return own_data.image_folder(
                root=place, size=size, channels=channels, classes=classes, **rest
            )


def _columns(
    place: Path,
    owner: OwnerSettings,
    terms: DeviceDataSpec,
    schema: Schema | None,
    blanks: bool,
) -> Dataset:
    """By the columns that the owner names, of a file or of a folder that ``datasets`` has saved.

    Nothing is written beside the ledger: neither a copy nor a cache of the table.
    """
    assert terms.shape is not None
    channels, height, width = terms.shape
    columns: dict[str, Any] = {
        "inputs": list(schema or owner.inputs or ()),
        "schema": schema,
        "label": owner.label,
        "classes": _classes(terms) if terms.objective.has_classes else None,
        "task": terms.objective.kind,
        "labels": terms.labels,
        "label_range": terms.label_range,
        "length": width,  # of texts, whose shape is (1, 1, length)
        "size": [height, width],
        "channels": channels,
        "test_fraction": 0.0,
        "blanks": blanks,
    }
    if not place.is_dir():
        return tables.table(path=str(place), **columns)
    if not any((place / file).is_file() for file in tables.SAVED):
        raise DataError(f"{place}: is no folder of save_to_disk")  # nor a name on the hub
    return tables.huggingface(path=str(place), test=None, **columns)


def _classes(terms: DeviceDataSpec) -> list[str]:
    """The classes in the order of their numbers, whichever of them are on this device."""
    if isinstance(terms.classes, list):
        return terms.classes
    return [str(label) for label in range(terms.num_classes)]


def public_pool(owner: OwnerSettings, terms: DeviceDataSpec) -> NDArray[np.float32]:
    """The copy here of the public pool (P, C, H, W), float32; empty where the run has none.

    DeviceError where the owner names no copy, or it is not the one whose digest the run states.
    """
    assert terms.shape is not None
    if terms.public is None:
        return np.zeros((0, *terms.shape), np.float32)
    if owner.public is None:
        raise DeviceError(
            "the run has a public pool, and this device's node-config names none (public=FILE); "
            "where the algorithm needs no pool, set federation.public=0"
        )
    images = read_npz(Path(owner.public).expanduser()).get("images")
    if images is None or pool_digest(images) != terms.public:
        raise DeviceError("the public pool of this device is not that of the run")
    return np.asarray(images, np.float32)
