"""A device's own data: what its owner's node-config names, and nothing that a server names.

``data=PATH`` is a folder of pictures, an .npz or a .csv file (``data.own_data``); with several
clients on one node ``{client}`` in it stands for the id. All of it is that client's data.
``public=FILE.npz`` is the device's copy of the run's public pool, where a run has one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_app.device.node_settings import DeviceError, Own
from fl_app.device.terms import DeviceTerms, pool_digest
from fl_app.run.population import Population
from learning.data import own_data
from learning.data.archives import read_npz
from learning.data.datasets import DataError, Dataset, Examples
from learning.features import Components, Features, fit
from learning.features.dataset import with_components

_SUFFIXES = {".npz": "npz", ".csv": "csv"}


def device_population(
    mine: Own, terms: DeviceTerms | None, cache: Path, features: Features | None = None
) -> Population:
    """The data of the clients that this device hosts; decoded pictures are kept in ``cache``.

    Raises DeviceError, whose message may leave, where the node-config or the run lacks something;
    DataError and ValueError, which stay here, where the data themselves are wrong.
    """
    if mine.data is None:
        raise DeviceError("this device's node-config names no data (data=PATH)")
    if terms is None or terms.shape is None or not terms.num_classes:
        raise DeviceError(
            "federation.devices: the run does not say which images and classes it is about; start "
            "it with `murmur engine=deploy`, or set federation.devices.shape and .classes"
        )
    if len(mine.clients) > 1 and "{client}" not in mine.data:
        raise DeviceError("this device hosts several clients; its data=PATH must hold {client}")
    places = {client: mine.data.replace("{client}", str(client)) for client in mine.clients}
    own = {client: load_own(place, terms, cache) for client, place in places.items()}
    _check_sizes(own, terms)
    ends = np.cumsum([0, *(len(examples) for examples in own.values())])
    shards = {c: np.arange(a, b) for c, a, b in zip(own, ends[:-1], ends[1:], strict=True)}
    shape = (terms.shape[0], terms.shape[1], terms.shape[2])
    nothing = Examples(np.zeros((0, *shape), np.float32), np.zeros(0, np.int64))
    parts = list(own.values())
    train = parts[0] if len(parts) == 1 else _joined([nothing, *parts])
    dataset = Dataset("this device's data", train, nothing, terms.num_classes, shape)
    sizes = None if terms.sizes is None else tuple(terms.sizes)
    nowhere = np.zeros(0, np.int64)
    images = Population(dataset, public_pool(mine, terms), shards, sizes, nowhere)
    return images if features is None else _featured(images, features, mine, terms)


def _featured(people: Population, features: Features, mine: Own, terms: DeviceTerms) -> Population:
    """``people`` with features for images, by the components in the copy of the public pool.

    Where that copy holds none they are fitted here, which gives the same where the processor does.
    """
    if mine.public is None:
        raise DeviceError("features need a public pool; the run has none")
    fitted = Components.of(read_npz(Path(mine.public).expanduser()))
    fitted = fitted or fit(features, people.public)
    if fitted.digest != terms.features:
        raise DeviceError("the features of this device's public pool are not those of the run")
    dataset = with_components(people.dataset, features, fitted)
    public = features.apply(fitted, people.public)
    return replace(people, dataset=dataset, public=public, fitted=fitted)


def load_own(path: str, terms: DeviceTerms, cache: Path) -> Examples:
    """One client's examples, checked against the run's images and classes."""
    assert terms.shape is not None
    channels, height, width = terms.shape
    place, names = Path(path).expanduser(), terms.class_names
    kind = _SUFFIXES.get(place.suffix.lower())
    if kind == "npz":
        found = own_data.npz(
            path=place, num_classes=terms.num_classes, test_fraction=0.0, cache=cache
        )
    elif kind == "csv":
        found = own_data.csv(
            path=place,
            shape=terms.shape,
            size=[height, width],
            channels=channels,
            classes=names,
            test_fraction=0.0,
            cache=cache,
        )
    else:
        found = own_data.image_folder(
            root=place,
            size=[height, width],
            channels=channels,
            classes=names,
            test_fraction=0.0,
            cache=cache,
        )
    if found.input_shape != tuple(terms.shape):
        raise DataError(
            f"{place}: images are {list(found.input_shape)}, the run is about {list(terms.shape)} "
            "(channels, height, width)"
        )
    if found.num_classes > terms.num_classes:
        raise DataError(
            f"{place}: has {found.num_classes} classes, the run is about {terms.num_classes}"
        )
    return found.train


def public_pool(mine: Own, terms: DeviceTerms) -> NDArray[np.float32]:
    """The copy here of the public pool (P, C, H, W); empty where the run has none."""
    assert terms.shape is not None
    if terms.public is None:
        return np.zeros((0, *terms.shape), np.float32)
    if mine.public is None:
        raise DeviceError(
            "the run has a public pool, and this device's node-config names none (public=FILE); "
            "where the algorithm needs no pool, set federation.public=0"
        )
    arrays = read_npz(Path(mine.public).expanduser())
    images = arrays.get("images")
    if images is None or pool_digest(images) != terms.public:
        raise DeviceError("the public pool of this device is not that of the run")
    return np.asarray(images, np.float32)


def _check_sizes(own: dict[int, Examples], terms: DeviceTerms) -> None:
    for client, examples in own.items():
        published = None if terms.sizes is None else dict(enumerate(terms.sizes)).get(client)
        if published is not None and published != len(examples):
            raise DeviceError("federation.devices.sizes: a client here has another number")


def _joined(parts: list[Examples]) -> Examples:
    return Examples(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )
