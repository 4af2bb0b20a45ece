"""Partitions: how the private examples are divided among the clients.

A partition is a frozen value, called with the labels, the number of clients, the number of classes
and a generator; it returns one sorted array of rows for each client (``shards``). No example goes
to two clients; every example goes to some client unless the class says otherwise. The result is a
function of the arguments alone. A partition that cannot be had raises ValueError, after a bounded
number of tries where it is drawn at random. A partition decides how many examples of each class
every client gets (``class_counts``), then the rows are assigned.

``FlowerPartitioner`` is any partitioner of flwr-datasets by its name. Ours are those that it lacks,
or whose bits published runs rest on: exact shards, mixtures for each client, sizes by groups or a
power law. They draw from the run's own stream, need no further package, and give
every client an example or say why they cannot.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
from pydantic import Field

from murmur.checks import require_integer
from murmur.learning.data.class_counts import (
    Rng,
    Rows,
    apportion,
    count_classes,
    draw_counts,
    even_sizes,
    symmetric_dirichlet,
)
from murmur.learning.data.shards import (
    NOBODY,
    ClientShards,
    DisjointShards,
    SampledShards,
    assign,
    assign_sizes,
)
from murmur.settings import Count, settings

# α = 1e-6 is one class for each client to every digit, 1e6 is even; beyond them there is nothing.
Concentration = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]


class Partition(Protocol):
    """Divides examples among clients.

    A class that does not look at labels says ``by_class = False``; only then it is asked in a task
    without classes, with all examples of one class.
    """

    def __call__(
        self, labels: Rows, num_clients: int, num_classes: int, rng: Rng
    ) -> Sequence[Rows]:
        """One sorted array of rows of ``labels`` (N,) for each client: a list, or ``ClientShards``.

        Disjoint, unless the class says ``shared``.

        Args:
            labels: each example's class, (N,); whose it is, where the class says ``by_owner``.
            num_clients: how many shares there are to be.
            num_classes: labels lie in [0, num_classes).
            rng: the experiment's randomness.

        Raises:
            ValueError: there are more clients than examples, a label is outside
                [0, num_classes), or the settings cannot be met.
        """


@settings
class IID:
    """Examples in random order, cut into shares whose sizes differ by at most one."""

    by_class: ClassVar[bool] = False

    def __call__(self, labels: Rows, num_clients: int, num_classes: int, rng: Rng) -> ClientShards:
        """See ``Partition``."""
        count_classes(labels, num_clients, num_classes)
        return assign_sizes(len(labels), even_sizes(len(labels), num_clients), rng)


@settings
class Dirichlet:
    """Label skew by Dirichlet(α, …, α); the smaller α, the stronger.

    Hsu, Qi and Brown 2019, arXiv:1909.06335, section 3; PrivateKT: client i draws its mixture of
    classes q_i ~ Dir(α·1_C), then its N/n examples from the classes in these proportions, without
    replacement. Where a class has run out, the rest follows q_i over the classes left; clients draw
    by turns, so that this meets all alike (``draw_counts``). Sizes differ by at most one. Hsu et
    al. write Dir(α'·p) for a prior p that sums to 1: with p uniform, α' = α·C.

    Classes that are cut over the clients instead (Yurochkin et al. 2019, arXiv:1905.12022; Li et
    al. 2022, arXiv:2102.02079) are flwr-datasets' ``DirichletPartitioner``.

    Attributes:
        alpha: concentration, in [1e-6, 1e6].
        min_size: the fewest examples a client may get.
    """

    alpha: Concentration = 0.5
    min_size: Count = 1

    def __call__(self, labels: Rows, num_clients: int, num_classes: int, rng: Rng) -> ClientShards:
        """See ``Partition``."""
        available = count_classes(labels, num_clients, num_classes, self.min_size)
        sizes = even_sizes(len(labels), num_clients)
        mixtures = symmetric_dirichlet(rng, self.alpha, num_clients, num_classes)
        return assign(labels, draw_counts(sizes, mixtures, available, rng), rng)


@settings
class Virtual:
    """Simulated owners who share examples: each draws its own, with replacement.

    A client's examples follow from the run's seed and its number whenever they are asked for, and
    nothing is kept, so there may be any number of clients over any data. An example may be with
    many of them: what a run says of a client's privacy holds for that simulated client, and not
    for the person whose example it was.

    Attributes:
        size: examples of each client.
        alpha: concentration of each client's mixture of classes, in [1e-6, 1e6], as in
            ``Dirichlet``; None: as the data are mixed.
    """

    shared: ClassVar[bool] = True

    size: Count = 50
    alpha: Concentration | None = None

    @property
    def by_class(self) -> bool:
        """True if clients' mixtures of classes are drawn."""
        return self.alpha is not None

    def __call__(self, labels: Rows, num_clients: int, num_classes: int, rng: Rng) -> ClientShards:
        """See ``Partition``."""
        ends = np.cumsum(count_classes(labels, 1, num_classes))
        rows = np.argsort(labels, kind="stable")
        seed = int(rng.integers(2**63))
        return SampledShards(rows, ends, num_clients, self.size, self.alpha, seed)


@settings
class Natural:
    """Each client is one owner of examples, as the data set says (``Dataset.owners``).

    Where there are fewer clients than owners, those are drawn at random, and the examples of the
    others stay unused. Called with the owners in place of the labels.
    """

    by_owner: ClassVar[bool] = True
    by_class: ClassVar[bool] = False

    def __call__(self, owners: Rows, num_clients: int, num_classes: int, rng: Rng) -> ClientShards:
        """See ``Partition``."""
        present, whose = np.unique(owners, return_inverse=True)
        if num_clients > len(present):
            raise ValueError(
                f"num_clients={num_clients}: the data have {len(present)} owners for clients; "
                "lower federation.num_clients to that"
            )
        chosen = np.sort(rng.permutation(present)[:num_clients])
        clients = np.full(len(present), NOBODY)
        clients[np.searchsorted(present, chosen)] = np.arange(num_clients)
        return DisjointShards.to(clients[whose], num_clients)


@settings
class Shards:
    """Every client holds ``classes_per_client`` classes, each in equal parts with its co-holders.

    After McMahan et al. 2017 (arXiv:1602.05629), whose two shards of the sorted labels may touch
    one to four classes; here the number is exact. Classes are dealt so that the numbers of
    holders differ by at most one; with fewer slots than classes, the classes without a holder
    stay unused.

    Attributes:
        classes_per_client: at least 1, at most the number of classes present.
    """

    classes_per_client: Count = 2

    def __call__(self, labels: Rows, num_clients: int, num_classes: int, rng: Rng) -> ClientShards:
        """See ``Partition``."""
        available = count_classes(labels, num_clients, num_classes)
        present = np.flatnonzero(available)
        if self.classes_per_client > len(present):
            raise ValueError(
                f"classes_per_client={self.classes_per_client}: must be at most {len(present)}, "
                "the number of classes in the data"
            )
        holds = np.zeros((num_clients, num_classes), dtype=bool)
        ties = rng.random((num_clients, len(present)))
        num_holders = np.zeros(len(present), dtype=np.int64)
        for client in range(num_clients):
            # The classes with the fewest holders so far, ties at random.
            chosen = np.lexsort((ties[client], num_holders))[: self.classes_per_client]
            num_holders[chosen] += 1
            holds[client, present[chosen]] = True
        counts = np.zeros((num_clients, num_classes), dtype=np.int64)
        for category in present:
            holders = np.flatnonzero(holds[:, category])
            if len(holders) > available[category]:
                raise ValueError(
                    f"num_clients={num_clients}: class {category} has {available[category]} "
                    f"examples for {len(holders)} clients; lower num_clients or "
                    "classes_per_client"
                )
            if len(holders):
                sizes = even_sizes(int(available[category]), len(holders))
                counts[holders, category] = sizes
        return assign(labels, counts, rng)


@settings
class QuantitySkew:
    """Clients of different sizes, with even or Dirichlet-skewed labels.

    Either ``exponent`` or ``groups`` says how large they are. With groups, examples beyond the sum
    stay unused.

    Attributes:
        exponent: at least 0; client i's size follows the power law (i+1)^-exponent, on top of
            ``min_size`` each. 0: equal sizes. All examples are used.
        groups: group name → ``count`` clients of ``size`` examples each, in this order; KD-DPFL's
            MNIST run is ``large``: 5 × 6,000 and ``general``: 40 × 500.
        alpha: None: examples whatever their label; a number: labels as in ``Dirichlet``.
        min_size: the fewest examples a client may get.
    """

    exponent: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    groups: Any = None
    alpha: Concentration | None = None
    min_size: Count = 1

    def __post_init__(self) -> None:
        if (self.exponent is None) == (self.groups is None):
            raise ValueError(
                f"exponent={self.exponent}, groups={self.groups}: exactly one of them must be set, "
                "the other null"
            )
        for name, group in (self.groups or {}).items():
            if not isinstance(group, Mapping) or set(group) != {"count", "size"}:
                raise ValueError(f"groups.{name}={group}: must hold count and size, nothing else")
            require_integer(f"groups.{name}.count", group["count"], 1)
            require_integer(f"groups.{name}.size", group["size"], self.min_size)

    def __call__(self, labels: Rows, num_clients: int, num_classes: int, rng: Rng) -> ClientShards:
        """See ``Partition``."""
        available = count_classes(labels, num_clients, num_classes, self.min_size)
        sizes = self.client_sizes(len(labels), num_clients)
        if self.alpha is None:
            return assign_sizes(len(labels), sizes, rng)
        mixtures = symmetric_dirichlet(rng, self.alpha, num_clients, num_classes)
        return assign(labels, draw_counts(sizes, mixtures, available, rng), rng)

    @property
    def by_class(self) -> bool:
        """True if clients' mixtures of classes are drawn."""
        return self.alpha is not None

    def client_sizes(self, total: int, num_clients: int) -> Rows:
        """Each client's number of examples out of ``total``, shape (clients,).

        Raises:
            ValueError: the settings name another number of clients, or more than ``total``.
        """
        if self.exponent is not None:
            weights = np.arange(1, num_clients + 1, dtype=np.float64) ** -self.exponent
            return self.min_size + apportion(total - num_clients * self.min_size, weights)
        sizes = [g["size"] for g in self.groups.values() for _ in range(g["count"])]
        if len(sizes) != num_clients:
            raise ValueError(
                f"num_clients={num_clients}: groups describe {len(sizes)} clients; make them equal"
            )
        if sum(sizes) > total:
            raise ValueError(
                f"groups={sum(sizes)} examples in all: there are only {total} private ones; "
                "lower the sizes or the public pool"
            )
        return np.array(sizes, dtype=np.int64)


class FlowerPartitioner:
    """``flwr_datasets.partitioner.NAME`` over the column ``label``.

    Args:
        name: of the class, such as ``DirichletPartitioner``.
        settings: its own, but for the number of partitions, the column of labels and the seed,
            which are the run's.

    Raises:
        ValueError: flwr-datasets is not installed, has no such class, or it refuses the settings.
    """

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        try:
            import flwr_datasets.partitioner as known
        except ImportError as error:
            raise ValueError(
                f"name={name}: this needs the package flwr-datasets; install it (extra `data`)"
            ) from error
        if name not in known.__all__:
            raise ValueError(f"name={name}: must be one of {', '.join(sorted(known.__all__))}")
        self.make = getattr(known, name)
        self.settings = dict(settings)

    def __call__(self, labels: Rows, num_clients: int, num_classes: int, rng: Rng) -> ClientShards:
        """See ``Partition``."""
        from datasets import Dataset

        own = {
            "num_partitions": num_clients,
            "partition_by": "label",
            "seed": int(rng.integers(2**31)),
        }
        takes = inspect.signature(self.make).parameters
        given = {key: value for key, value in own.items() if key in takes} | self.settings
        try:
            partitioner = self.make(**given)
            partitioner.dataset = Dataset.from_dict(
                {"label": labels, "row": np.arange(len(labels))}
            )
            if partitioner.num_partitions != num_clients:
                raise ValueError(
                    f"makes {partitioner.num_partitions} partitions for {num_clients} clients"
                )
            parts = [partitioner.load_partition(client)["row"] for client in range(num_clients)]
        except (TypeError, ValueError) as error:
            raise ValueError(f"settings={self.settings}: {error}") from error
        shares = [np.sort(np.asarray(part, np.int64)) for part in parts]
        return DisjointShards.joined(shares)
