"""A device's own data: what its owner's node-config names, and nothing that a server names.

``data=PATH`` is a folder of pictures, an .npz or a .csv file (``murmur.learning.data.own_data``),
or, where ``inputs`` names columns, a table: a CSV or Parquet file or a folder that ``datasets`` has
saved (``murmur.learning.data.tables``). With several clients on one node ``{client}`` in it stands
for the id. All of it is that client's data.
``public=FILE.npz`` is the device's copy of the run's public pool, where a run has one. What data
must be like (``shape``, ``classes``, ``sizes``) is set by the owner too: data that do not fit are
refused, and the server learns only that something was refused.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.config.settings import DeviceTerms, pool_digest
from fl_app.device.node_settings import DeviceError, OwnerSettings
from fl_app.run.population import Population
from murmur.learning.data import own_data, tables
from murmur.learning.data.datasets import DataError, Dataset, Examples
from murmur.learning.data.examples import LocalData
from murmur.learning.data.files import read_npz
from murmur.learning.features.components import Components, Features, Fitted, with_components
from murmur.round.task import log_error


def device_population(
    owner: OwnerSettings, terms: DeviceTerms, features: Features | None = None
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
            "this device's node-config does not say what its data are like (shape=, classes=)"
        )
    if len(owner.clients) > 1 and "{client}" not in owner.data:
        raise DeviceError("this device hosts several clients; its data=PATH must hold {client}")
    channels, height, width = terms.shape
    shape = (channels, height, width)
    nothing = Examples(np.zeros((0, *shape), np.float32), np.zeros(0, np.int64))
    dataset = Dataset("this device's data", nothing, nothing, terms.num_classes, shape)
    sizes = None
    if terms.sizes is not None:
        sizes = tuple(terms.sizes)
    nowhere = np.zeros(0, np.int64)
    images = Population(dataset, public_pool(owner, terms), (), sizes, nowhere)
    if features is None:
        return images
    return _featured(images, features, owner, terms)


def _featured(
    people: Population, features: Features, owner: OwnerSettings, terms: DeviceTerms
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
    dataset = with_components(people.dataset, features, fitted)
    public = features.apply(fitted, people.public)
    return replace(people, dataset=dataset, public=public, fitted=fitted)


@dataclass
class OwnData:
    """The data of a device's clients, each opened when it is first needed and then kept.

    A ``murmur.round.host.Data``: the host opens them after the policy's word and before the charge,
    so that data which cannot be read cost nothing.

    Args:
        owner: whose words name the data.
        terms: what the run asks of them.
        folder: the device's, for its log and for decoded images, which only the owner can read.
        features: what the run makes of images. None: they stay as they are.
        fitted: the components with which it does; None where ``features`` is.
    """

    owner: OwnerSettings
    terms: DeviceTerms
    folder: Path
    features: Features | None = None
    fitted: Fitted | None = None
    _opened: dict[int, LocalData] = field(default_factory=dict)

    def of(self, client: int) -> LocalData:
        """The data of ``client``, opened once: images (n, C, H, W) or features, and labels (n,).

        Blank ones where features of them cannot be computed.

        Args:
            client: one of the owner's.

        Raises:
            DataError: there are none, they do not fit, or their number is another than was
                published.
            ValueError, OSError: they cannot be read.
        """
        if client not in self._opened:
            place = str(self.owner.data).replace("{client}", str(client))
            found = load_own(place, self.owner, self.terms, self.folder / "cache")
            self._require_size(client, len(found))
            try:
                images = self._seen(found.images)
                rows = np.arange(len(found))
                local = LocalData(images, found.labels, rows, sources=found.images)
            except Exception as error:  # a refusal would tell of the rows: a server names features
                log_error(self.folder, f"the features of client {client}", error)
                local = self.blank(client)
            self._opened[client] = local
        return self._opened[client]

    def blank(self, client: int) -> LocalData:
        """As many blank records as ``client`` has published, or one: what a model is tried on.

        Zeros with label 0. A charged client answers with them where its own data cannot be trained
        on: whether a device answers must not depend on its data.
        """
        size = 1
        if self.terms.sizes is not None:
            size = self.terms.sizes[client]
        images = self._seen(np.zeros((1, *(self.terms.shape or ())), np.float32))
        rows = np.broadcast_to(images, (size, *images.shape[1:]))
        return LocalData(rows, np.zeros(size, np.int64), np.arange(size))

    def _seen(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """``images``, or the run's features of them."""
        if self.features is None or self.fitted is None:
            return images
        return self.features.apply(self.fitted, images)

    def _require_size(self, client: int, found: int) -> None:
        """DataError for no data, and for another number of them than was published."""
        if not found:
            raise DataError(f"client {client} has no examples")
        sizes = self.terms.sizes
        if sizes is not None and (client >= len(sizes) or sizes[client] != found):
            raise DataError(f"client {client} has {found} examples, its owner has published others")


def load_own(path: str, owner: OwnerSettings, terms: DeviceTerms, cache: Path) -> Examples:
    """One client's examples, checked against the owner's words.

    Args:
        path: a folder of pictures, an .npz, a .csv, or where the owner names columns a table.
        owner: the names of columns, if any.
        terms: shape and classes that the examples must have.
        cache: folder for decoded images.

    Raises:
        DataError: they do not fit; ValueError, OSError: they cannot be read.
    """
    assert terms.shape is not None
    place = Path(path).expanduser()
    if owner.inputs is None:
        found = _images(place, terms, cache)
    else:
        found = _columns(place, owner, terms)
    if found.input_shape != tuple(terms.shape):
        raise DataError(
            f"{place}: examples are {list(found.input_shape)}, not {list(terms.shape)} "
            "(channels, height, width)"
        )
    if found.num_classes > terms.num_classes:
        raise DataError(f"{place}: has {found.num_classes} classes, not {terms.num_classes}")
    return found.train


def _images(place: Path, terms: DeviceTerms, cache: Path) -> Dataset:
    """By the reader for the file's suffix; a folder is one of pictures by class."""
    assert terms.shape is not None
    channels, height, width = terms.shape
    size = [height, width]
    rest: dict[str, Any] = {"test_fraction": 0.0, "cache": cache}
    classes = _classes(terms)
    match place.suffix.lower():
        case ".npz":
            return own_data.npz(path=place, num_classes=terms.num_classes, **rest)
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


def _columns(place: Path, owner: OwnerSettings, terms: DeviceTerms) -> Dataset:
    """By the columns that the owner names, of a file or of a folder that ``datasets`` has saved.

    Nothing is written beside the ledger: neither a copy nor a cache of the table.
    """
    assert terms.shape is not None
    channels, height, width = terms.shape
    columns: dict[str, Any] = {
        "inputs": owner.inputs,
        "label": owner.label,
        "classes": _classes(terms),
        "length": width,  # of texts, whose shape is (1, 1, length)
        "size": [height, width],
        "channels": channels,
        "test_fraction": 0.0,
    }
    if not place.is_dir():
        return tables.table(path=str(place), **columns)
    if not any((place / file).is_file() for file in tables.SAVED):
        raise DataError(f"{place}: is no folder of save_to_disk")  # nor a name on the hub
    return tables.huggingface(path=str(place), test=None, **columns)


def _classes(terms: DeviceTerms) -> list[str]:
    """The classes in the order of their numbers, whichever of them are on this device."""
    if isinstance(terms.classes, list):
        return terms.classes
    return [str(label) for label in range(terms.num_classes)]


def public_pool(owner: OwnerSettings, terms: DeviceTerms) -> NDArray[np.float32]:
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
