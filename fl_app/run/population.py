"""Who has which data: data set, public pool, and each client's share of the rest.

In a simulation server and nodes build the same population from the same configuration; a process
does so once. Where clients are on devices the server has the public pool and its test set only,
and each device builds its own population (``fl_app.device.data``).

In this order the training set is divided: the public pool, validation examples that nobody holds,
and the rest, which the partition shares out over clients. Whole owners are taken in the first two
steps, unless ``dataset.split=rows``. All draws follow from the run's seed.

``population`` is what a run uses; ``image_population`` is the same before features are computed.
"""

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from fl_app.config import compose, errors, groups, instantiate, settings
from fl_app.config.once import once
from murmur.learning.data.cells import nfc
from murmur.learning.data.class_counts import label_counts
from murmur.learning.data.datasets import DataError, Dataset
from murmur.learning.data.digests import digests_of
from murmur.learning.data.examples import split_public
from murmur.learning.data.shards import ClientShards, DisjointShards
from murmur.learning.data.splits import Unseen, require_taught
from murmur.learning.features.bins import Bins
from murmur.learning.features.components import Features, Fitted, featured
from murmur.learning.objective import CLASSIFICATION, KINDS
from murmur.random import experiment_rng

SERVERS_FEATURES = ("fitted_on", "fitted_images", "names")
"""Keys of conf/features that a server reads and devices do not."""

UNSEEN = "unseen"  # in files of conf/dataset: of test rows whose class no training row has

_PARTS = 10  # a pilot holds out one part in so many of the public examples


@dataclass(frozen=True)
class Population:
    """A data set, and who has which part of it.

    Attributes:
        dataset: with features in place of images where ``conf/features`` computes any.
        public: (P, C, H, W), the pool without labels; features likewise.
        shards: rows of ``dataset.train`` by client, of those whose data are here: all clients in a
            simulation, none (an empty sequence) where clients are on devices.
        sizes: examples of every client of the federation, by id; None where they are not public.
            In a simulation the configuration makes them so.
        public_rows: rows of ``dataset.train`` that everybody may see; none where the pool is a
            device's copy.
        held_out: rows of ``dataset.train`` that neither a client nor the pool has. In a pilot they
            are public rows too.
        fitted: what features were fitted with; None where there are none.
        shared: whether clients have examples in common.
    """

    dataset: Dataset
    public: NDArray[np.float32]
    shards: Sequence[NDArray[np.int64]]
    sizes: tuple[int, ...] | None
    public_rows: NDArray[np.int64]
    held_out: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    fitted: Fitted | None = None
    shared: bool = False

    def client_sizes(self) -> tuple[int, ...]:
        """Examples of every client, by id, for tools that plan with them.

        Raises:
            ConfigError: they are not public.
        """
        if self.sizes is None:
            raise errors.ConfigError(
                "federation.devices.sizes=null: this needs every client's public number of "
                "examples; give them as a list"
            )
        return self.sizes

    @property
    def split_by_rows(self) -> str:
        """The statement's sentence on owners whose rows are not with clients alone; else empty.

        With ``dataset.split=rows`` the same person may be a client and in the public pool. Her rows
        there have no noise, and ε says nothing of what they show.
        """
        data = self.dataset
        if data.split == "owners" or data.owners is None or not self.shards:
            return ""
        return (
            "rows of clients' owners that dataset.split=rows has put into the public pool, the "
            "validation examples or the test set; no figure here covers what these show"
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings in a run and its statement about which client has which data."""
        if not self.shared:
            return ()
        return (
            "clients share examples (partition=virtual draws them with replacement): every figure "
            "is for one simulated client or its records, not for a person whose example several of "
            "them have",
        )

    def class_counts(self, clients: Sequence[int] | None = None) -> NDArray[np.int64]:
        """Examples of each class at ``clients``, int64 (clients, classes); None: all, in id order.

        Where labels are no classes, all examples count as of one.

        Reads private labels: for the reports of a simulation only.
        """
        if clients is None:
            clients = range(len(self.shards))
        shares = (self.shards[client] for client in clients)
        data = self.dataset
        return label_counts(shares, data.train.strata, data.num_strata)


def population(config: DictConfig) -> Population:
    """The population that ``config`` describes, with features where it asks for them.

    The last two are kept, by the settings that matter to them, so server and nodes of one process
    share the arrays. They must not be written to.

    Raises:
        ConfigError: the data cannot be read, or the settings do not fit them.
    """
    return _population(described(config, "features"), described(config))


def image_population(config: DictConfig) -> Population:
    """Returns the population of images, before features, as on devices and in pools.

    Raises:
        ConfigError: as ``population``.
    """
    return _images(described(config))


def data_digests(config: DictConfig) -> dict[str, str]:
    """Returns digests of the data set as this process read it, by part; see ``digests_of``.

    They cover all rows, before features. ConfigError as ``population``.
    """
    return _digests(_reader_settings(config.dataset, config.task))


@functools.lru_cache(maxsize=2)
def _digests(description: str) -> dict[str, str]:
    return digests_of(_dataset(description))


@dataclass(frozen=True)
class Described:
    """Settings, equal where their texts are, as a key of a cache.

    Attributes:
        text: of all of them, resolved.
        config: the same.
    """

    text: str
    config: DictConfig = field(compare=False)


@once
def described(config: DictConfig, *more: str) -> Described:
    """All settings of a population, and ``more`` groups."""
    keys = ("task", "dataset", "partition", "federation", "seed", *more)
    needed = OmegaConf.create({key: config[key] for key in keys}, flags={"readonly": True})
    return Described(str(OmegaConf.to_container(needed, resolve=True)), needed)


@functools.lru_cache(maxsize=2)
def _population(description: Described, images: Described) -> Population:
    """The population of ``images`` with the features of ``description``.

    What is fitted is fitted on the public rows or on another data set, never on a client's. Where
    models are scored on held-out rows, these take the place of the test set.
    """
    config, people = description.config, _images(images)
    features = build_features(config.features)
    if features is not None:
        _require_one_schema(config.dataset, features)
        elsewhere = _fitted_on(config.features, people)
        try:
            cache = config.dataset.get("cache")
            rows = people.public_rows
            dataset, fitted = featured(people.dataset, features, rows, cache, elsewhere)
        except (ValueError, MemoryError, DataError) as error:
            raise errors.ConfigError(f"features: {error}") from error
        if people.dataset.texts:
            dataset = replace(dataset, notes=(*dataset.notes, _texts_are(config.features, fitted)))
        rows = np.setdiff1d(people.public_rows, people.held_out)
        people = replace(people, dataset=dataset, public=dataset.train.images[rows], fitted=fitted)
    federation: settings.FederationSettings = instantiate.build(config.federation, "federation")
    if not federation.on_held_out:
        return people
    dataset = people.dataset
    owners = None if dataset.owners is None else dataset.owners[people.held_out]
    test = dataset.train.take(people.held_out)
    return replace(people, dataset=replace(dataset, test=test, test_owners=owners))


def _require_one_schema(dataset: DictConfig, features: Features) -> None:
    """ConfigError where a table is read by another schema than its features are made by."""
    schema = features.known.schema if features.known is not None else None
    if schema is None or "schema" not in dataset:
        return
    own = None
    if dataset.schema is not None:
        try:
            own = Bins(dataset.schema).schema
        except ValueError as error:
            raise errors.ConfigError(f"dataset.{error}") from error
    if own != schema:
        raise errors.ConfigError(
            "features.schema: the table is read by dataset.schema, which says something else; set "
            "features.schema='${dataset.schema}'"
        )


def _texts_are(node: DictConfig, fitted: Fitted) -> str:
    """Describes in one sentence the vectors that stand for texts in a run."""
    licence = getattr(fitted, "licence", "")
    if licence:  # it binds whoever uses the model
        return f"texts are vectors of features.encoder={node.encoder}: its licence is {licence}"
    return (
        f"texts are {fitted.size} hashed words and pairs of words (features=words); an encoder "
        "learns from fewer: pip install 'murmur-fl[encoder]', and features.encoder=FOLDER"
    )


def build_features(node: DictConfig) -> Features | None:
    """The map of ``conf/features``; None for ``features=none``.

    Server and devices build the same; what only the server reads there (``SERVERS_FEATURES``) is
    left out. ConfigError where a setting is refused.
    """
    own = {key: value for key, value in node.items() if key not in SERVERS_FEATURES}
    return instantiate.build(OmegaConf.create(own), "features")


def _fitted_on(node: DictConfig, people: Population) -> NDArray[np.float32] | None:
    """The images of another data set that features are fitted on; None: the public pool.

    The first ``fitted_images`` of its training set, (N, C, H, W). They count as public: no budget
    covers them, so ConfigError where one of them is private in a simulation of ``people``.
    """
    name = node.get("fitted_on")
    if name is None:
        return None
    known = groups.groups()["dataset"]
    if name not in known:
        raise errors.ConfigError(
            f"features.fitted_on={name}: unknown; known are {', '.join(known)}"
        )
    if not node.fitted_images > 1:
        raise errors.ConfigError(f"features.fitted_images={node.fitted_images}: must be at least 2")
    other = _read(compose.installed((f"dataset={name}",)).dataset, CLASSIFICATION.kind)
    images = np.array(other.train.images[: node.fitted_images])
    if people.shards:
        train = people.dataset.train.images
        private = np.setdiff1d(np.arange(len(train)), people.public_rows)
        fitted = {image.tobytes() for image in images}
        if any(train[row].tobytes() in fitted for row in private):
            raise errors.ConfigError(
                f"features.fitted_on={name}: holds images that are private in this run, which no "
                "budget would cover; name another data set, or null for the public pool"
            )
    return images


@functools.lru_cache(maxsize=2)
def _images(description: Described) -> Population:
    config = description.config
    federation: settings.FederationSettings = instantiate.build(config.federation, "federation")
    terms = federation.device_data_spec()
    dataset = _read(config.dataset, config.task)
    if terms is None:  # a server of devices has a pool, whose labels are not used, to train on
        dataset = _taught(dataset, config.dataset)
    size = federation.public_size(len(dataset.train))
    if terms is not None:
        _require_same_labels(dataset, terms)
        rows = _pool(dataset, size, config.seed)
        return Population(dataset, dataset.train.images[rows], (), _sizes(terms), rows)
    if size >= len(dataset.train):
        raise errors.ConfigError(
            f"federation.public={federation.public}: must leave private data; the training set "
            f"has {len(dataset.train)} examples"
        )
    everybody = np.arange(len(dataset.train))
    rng = experiment_rng(config.seed, "public pool")
    name = f"federation.public={federation.public}"
    public, private = _split(name, everybody, size, rng, dataset)
    held_out, private = _held_out(federation, public, private, config.seed, dataset)
    partition = instantiate.build(config.partition, "partition")
    shared = getattr(partition, "shared", False)
    if federation.num_clients > len(private) and not shared:
        raise errors.ConfigError(
            f"federation.num_clients={federation.num_clients}: more clients than the "
            f"{len(private)} private examples; lower it, federation.public or "
            "federation.validation, or let clients share examples (partition=virtual)"
        )
    _require_blind(partition, config.partition, config.task)
    divided = dataset.owners if is_by_owner(config.partition) else dataset.train.strata
    if divided is None:
        raise errors.ConfigError(
            "partition=natural: the data set does not say whose each example is; name the column "
            "that does (dataset.client) or, of pictures, the levels of folders (dataset.owners)"
        )
    try:
        shares = partition(
            divided[private],
            federation.num_clients,
            dataset.num_strata,
            experiment_rng(config.seed, "partition"),
        )
    except ValueError as error:
        raise errors.ConfigError(f"partition: {error}") from error
    if not isinstance(shares, ClientShards):  # of a user's own class
        shares = DisjointShards.joined(shares)
    _require_full(shares, config.partition)
    if not shared:
        _require_disjoint(shares, len(private))
    shards = shares.restricted_to(private)
    sizes = tuple(shares.sizes.tolist())
    pool = dataset.train.images[np.setdiff1d(public, held_out)]
    return Population(dataset, pool, shards, sizes, public, held_out, shared=shared)


def is_by_owner(node: DictConfig) -> bool:
    """Returns whether the partition of ``node`` makes each client of one owner."""
    return bool(getattr(instantiate.build(node, "partition"), "by_owner", False))


def _require_blind(partition: object, node: DictConfig, task: str) -> None:
    """ConfigError where the partition of ``node`` divides by classes and ``task`` has none."""
    if task == CLASSIFICATION.kind or not getattr(partition, "by_class", True):
        return
    raise errors.ConfigError(
        f"partition={_name_of(node)}: divides by class, and task={task} has no classes; set "
        "partition=iid, natural or quantity_skew"
    )


def _name_of(node: DictConfig) -> str:
    return str(node._target_).rpartition(".")[2]


def _require_full(shares: ClientShards, partition: DictConfig) -> None:
    """ConfigError where ``partition``, as ``conf`` has it, leaves a client without examples."""
    empty = np.flatnonzero(shares.sizes == 0)
    if not len(empty):
        return
    name = _name_of(partition)
    raise errors.ConfigError(
        f"partition={name}: leaves {len(empty)} of {len(shares)} clients without examples (the "
        f"first is client {empty[0]}), and each must have at least one; lower "
        "federation.num_clients or federation.public, or take another partition or settings of it"
    )


def _require_disjoint(shares: ClientShards, count: int) -> None:
    """ConfigError unless each of ``count`` examples is with one client at most, and once."""
    if isinstance(shares, DisjointShards):
        rows = shares.rows
    else:
        rows = np.concatenate(list(shares))
    inside = rows.min(initial=0) >= 0 and rows.max(initial=0) < count
    if not inside or len(np.unique(rows)) < len(rows):
        raise errors.ConfigError(
            f"partition: its rows must lie in 0..{count - 1} and none go out twice; a class whose "
            "clients share examples says so (shared = True)"
        )


def _held_out(
    federation: settings.FederationSettings,
    public: NDArray[np.int64],
    private: NDArray[np.int64],
    seed: int,
    dataset: Dataset,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of nobody, to score models on, and the rows that clients share out.

    In a pilot both are public: a tenth of the pool, and draws with replacement from the rest. It
    plays a federation of the real number of clients without touching a private example.

    Args:
        federation: gives ``validation`` and ``pilot``.
        public: rows of the pool.
        private: all other rows.
        seed: of the run.
        dataset: which rows stay together.

    Raises:
        ConfigError: too few rows are left, or the pool is too small for a pilot.
    """
    if federation.pilot is None:
        if federation.validation >= len(private):
            raise errors.ConfigError(
                f"federation.validation={federation.validation}: must leave private data; "
                f"{len(private)} examples are not public"
            )
        rng = experiment_rng(seed, "validation")
        name = f"federation.validation={federation.validation}"
        labels = dataset.train.strata[private]
        return _split(name, private, federation.validation, rng, dataset, labels)
    if len(public) < _PARTS:
        raise errors.ConfigError(
            f"federation.public={len(public)}: a pilot needs at least {_PARTS} public examples"
        )
    rng = experiment_rng(seed, "pilot")
    name = f"federation.public={len(public)}"
    held_out, kept = _split(name, public, len(public) // _PARTS, rng, dataset)
    count = federation.num_clients * federation.pilot
    return held_out, experiment_rng(seed, "pilot clients").choice(kept, count)


def _split(
    name: str,
    rows: NDArray[np.int64],
    count: int,
    rng: np.random.Generator,
    dataset: Dataset,
    labels: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``count`` of ``rows`` at random, and the rest; whole owners, as the data set asks.

    With whole owners there may be fewer or more than ``count``. With ``labels`` of ``rows``, the
    rest keeps one of each class. ConfigError, which begins with the
    setting ``name``, where no owner has so few rows.
    """
    owners = None if dataset.together is None else dataset.together[rows]
    try:
        chosen, rest = split_public(len(rows), count, rng, owners, labels)
    except ValueError as error:
        raise errors.ConfigError(f"{name}: {str(error).partition(': ')[2]}") from error
    return rows[chosen], rows[rest]


def _pool(dataset: Dataset, size: int, seed: int) -> NDArray[np.int64]:
    """The server's public pool; where it has nothing else, all of its training images.

    Rows, sorted. Devices have a copy, which is compared by its digest (``pool_digest``).
    ConfigError where the server's data hold fewer images than ``size``.
    """
    count = len(dataset.train)
    if size == count:
        return np.arange(count)
    if size > count:
        raise errors.ConfigError(
            f"federation.public={size}: the server's data hold {count} training images"
        )
    rng = experiment_rng(seed, "public pool")
    return _split(f"federation.public={size}", np.arange(count), size, rng, dataset)[0]


def _sizes(terms: settings.DeviceDataSpec) -> tuple[int, ...] | None:
    return None if terms.sizes is None else tuple(terms.sizes)


def _require_same_labels(dataset: Dataset, terms: settings.DeviceDataSpec) -> None:
    """ConfigError where the server's test set has or numbers its labels otherwise than devices do.

    Numbers 0, 1, ... fit any names.
    """
    objective = dataset.objective
    told = [getattr(terms, key) for key in ("classes", "label_range", "labels")]
    if told != [None] * 3 and terms.objective != objective:
        raise errors.ConfigError(
            f"federation.devices.label_range={terms.label_range}: the server's data have labels of "
            f"task={objective.kind} in {[objective.low, objective.high]}; leave "
            "federation.devices.label_range, labels and classes null"
        )
    key = "classes" if objective.has_classes else "labels"
    named = getattr(terms, key)
    numbers = tuple(map(str, range(dataset.num_classes)))
    if not isinstance(named, list) or dataset.classes in (None, numbers):
        return
    if tuple(map(nfc, named)) != dataset.classes:
        raise errors.ConfigError(
            f"federation.devices.{key}={named}: the server's data have the {key} "
            f"{list(dataset.classes or ())}; name the same in the same order (dataset.{key})"
        )


def _read(node: DictConfig, task: str) -> Dataset:
    """Returns the data set of ``conf/dataset``, from its reader.

    Raises:
        ConfigError: the reader refuses, or its labels are of another task.
    """
    dataset = _dataset(_reader_settings(node, task))
    if dataset.objective.kind != task:
        raise errors.ConfigError(
            f"task={task}: dataset={_name_of(node)} has labels of task={dataset.objective.kind}"
        )
    return dataset


@once
def _reader_settings(node: DictConfig, task: str) -> str:
    """Returns a reader's settings in YAML: ``unseen`` is a matter of splits, not of readers.

    Raises:
        ConfigError: the task is unknown, or the reader has classes only.
    """
    own = {key: value for key, value in node.items() if key != UNSEEN}
    if task not in KINDS:
        raise errors.ConfigError(f"task={task}: must be one of {', '.join(KINDS)}")
    if task != CLASSIFICATION.kind:
        reader = instantiate.class_of(node, "dataset")
        if "task" not in inspect.signature(reader).parameters:
            raise errors.ConfigError(
                f"task={task}: dataset={_name_of(node)} reads classes only; choose dataset=table, "
                "huggingface or npz"
            )
        own["task"] = task
    return OmegaConf.to_yaml(OmegaConf.create(own), resolve=True)


@functools.lru_cache(maxsize=2)
def _dataset(description: str) -> Dataset:
    try:
        return instantiate.build(OmegaConf.create(description), "dataset")
    except (DataError, MemoryError) as error:
        raise errors.ConfigError(f"dataset: {error}") from error


def _taught(dataset: Dataset, config: DictConfig) -> Dataset:
    """``dataset`` with test rows of classes that training rows have; see ``require_taught``."""
    unseen = config.get(UNSEEN, "refuse")
    instantiate.require(f"dataset.{UNSEEN}", unseen, Unseen)
    try:
        return require_taught(dataset, unseen)
    except DataError as error:
        raise errors.ConfigError(f"dataset: {error}") from error
