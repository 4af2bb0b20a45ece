"""How the private examples are divided among the clients.

A partition is a frozen value, called with the labels, the number of clients, the number of classes
and a generator; it returns one sorted array of indices per client. No example goes to two clients;
every example goes to some client unless the class says otherwise. The result is a function of the
arguments alone. A partition that cannot be had raises ValueError, after a bounded number of tries
where it is drawn at random. flwr-datasets' partitioners are here by name (``FlowerPartitioner``).

Ours stay where both have one: they need neither that package nor a table in Arrow, so that a run of
many clients starts sooner; they give every client an example, or say why not; and they draw from
the run's own stream (``murmur.common``), on whose bits published runs rest.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from murmur.common import require_integer, require_number
from murmur.learning.data.allocation import (
    apportion,
    count_classes,
    deal,
    deal_sizes,
    draw_counts,
    draw_until_large_enough,
    even_sizes,
    require_concentration,
    symmetric_dirichlet,
)

Shares = list[NDArray[np.int64]]


class Partition(Protocol):
    """Divides examples among clients."""

    def __call__(
        self,
        labels: NDArray[np.int64],
        num_clients: int,
        num_classes: int,
        rng: np.random.Generator,
    ) -> Shares:
        """One sorted array of indices into ``labels`` (N,) per client, pairwise disjoint.

        Raises:
            ValueError: there are more clients than examples, a label is outside
                [0, num_classes), or the settings cannot be met.
        """


def label_counts(shares: Shares, labels: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
    """How many examples of each class each client has, shape (clients, classes)."""
    return np.stack([np.bincount(labels[share], minlength=num_classes) for share in shares])


@dataclass(frozen=True)
class IID:
    """Examples in random order, cut into shares whose sizes differ by at most one."""

    def __call__(
        self,
        labels: NDArray[np.int64],
        num_clients: int,
        num_classes: int,
        rng: np.random.Generator,
    ) -> Shares:
        """See ``Partition``."""
        count_classes(labels, num_clients, num_classes)
        return deal_sizes(len(labels), even_sizes(len(labels), num_clients), rng)


@dataclass(frozen=True)
class Dirichlet:
    """Label skew by Dirichlet(α, …, α); the smaller α, the stronger.

    ``per="client"`` (Hsu, Qi and Brown 2019, arXiv:1909.06335, section 3; PrivateKT): client i
    draws its mixture of classes q_i ~ Dir(α·1_C), then its N/n examples from the classes in these
    proportions, without replacement. Where a class has run out, the rest follows q_i over the
    classes left; clients draw by turns, so that this meets all alike
    (``murmur.learning.data.allocation.draw_counts``). Sizes differ by at most one. Hsu et al. write
    Dir(α'·p) for a prior p that sums to 1: with p uniform, α' = α·C.

    ``per="class"`` (Yurochkin et al. 2019, arXiv:1905.12022; Li et al. 2022, arXiv:2102.02079):
    class c is cut over the clients in proportions p_c ~ Dir(α·1_n). Sizes differ too; all is
    drawn anew until every client has ``min_size`` examples.

    Attributes:
        alpha: concentration, in [1e-6, 1e6].
        per: whose proportions are drawn, ``client`` or ``class``.
        min_size: the fewest examples a client may get.
        max_retries: how many times ``per="class"`` draws before it gives up.
    """

    alpha: float = 0.5
    per: str = "client"
    min_size: int = 1
    max_retries: int = 100

    def __post_init__(self) -> None:
        require_concentration("alpha", self.alpha)
        if self.per not in ("client", "class"):
            raise ValueError(f"per={self.per}: must be client or class")
        require_integer("min_size", self.min_size, 1)
        require_integer("max_retries", self.max_retries, 1)

    def __call__(
        self,
        labels: NDArray[np.int64],
        num_clients: int,
        num_classes: int,
        rng: np.random.Generator,
    ) -> Shares:
        """See ``Partition``."""
        available = count_classes(labels, num_clients, num_classes, self.min_size)
        if self.per == "client":
            sizes = even_sizes(len(labels), num_clients)
            mixtures = symmetric_dirichlet(rng, self.alpha, num_clients, num_classes)
            return deal(labels, draw_counts(sizes, mixtures, available, rng), rng)

        def draw() -> NDArray[np.int64]:
            splits = symmetric_dirichlet(rng, self.alpha, num_classes, num_clients)
            pairs = zip(available, splits, strict=True)
            return np.stack([apportion(int(n), split) for n, split in pairs], axis=1)

        counts = draw_until_large_enough(
            draw,
            min_size=self.min_size,
            max_retries=self.max_retries,
            remedy=f"raise alpha={self.alpha}, lower min_size or num_clients, or set per=client",
        )
        return deal(labels, counts, rng)


@dataclass(frozen=True)
class Natural:
    """Each client is one owner of examples, as the data set says (``Dataset.owners``).

    Where there are fewer clients than owners, those are drawn at random, and the examples of the
    others stay unused. Called with the owners in place of the labels.
    """

    by_owner: ClassVar[bool] = True

    def __call__(
        self,
        owners: NDArray[np.int64],
        num_clients: int,
        num_classes: int,
        rng: np.random.Generator,
    ) -> Shares:
        """See ``Partition``."""
        present = np.unique(owners)
        if num_clients > len(present):
            raise ValueError(
                f"num_clients={num_clients}: the data have {len(present)} owners for clients; "
                "lower federation.num_clients to that"
            )
        chosen = np.sort(rng.permutation(present)[:num_clients])
        by_owner = np.argsort(owners, kind="stable")
        starts = np.searchsorted(owners, present[1:], sorter=by_owner)
        rows = dict(zip(present, np.split(by_owner, starts), strict=True))
        return [rows[owner] for owner in chosen]


@dataclass(frozen=True)
class Shards:
    """Every client holds ``classes_per_client`` classes, each in equal parts with its co-holders.

    After McMahan et al. 2017 (arXiv:1602.05629), whose two shards of the sorted labels may touch
    one to four classes; here the number is exact. Classes are dealt so that the numbers of
    holders differ by at most one; with fewer slots than classes, the classes without a holder
    stay unused.

    Attributes:
        classes_per_client: at least 1, at most the number of classes present.
    """

    classes_per_client: int = 2

    def __post_init__(self) -> None:
        require_integer("classes_per_client", self.classes_per_client, 1)

    def __call__(
        self,
        labels: NDArray[np.int64],
        num_clients: int,
        num_classes: int,
        rng: np.random.Generator,
    ) -> Shares:
        """See ``Partition``."""
        available = count_classes(labels, num_clients, num_classes)
        present = np.flatnonzero(available)
        if self.classes_per_client > len(present):
            raise ValueError(
                f"classes_per_client={self.classes_per_client}: must be at most {len(present)}, "
                "the number of classes in the data"
            )
        holds = np.zeros((num_clients, num_classes), dtype=bool)
        num_holders = np.zeros(len(present), dtype=np.int64)
        for client in range(num_clients):
            # The classes with the fewest holders so far, ties at random.
            chosen = np.lexsort((rng.random(len(present)), num_holders))[: self.classes_per_client]
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
        return deal(labels, counts, rng)


@dataclass(frozen=True)
class Legacy:
    """The partition of PrivateKT's authors (their ``preprocessing.py``, ``local_data_partition``).

    Each class is shuffled once and consumed from its start. Client i of the first n−1 draws
    q_i ~ Dir(α·1_C), rounds ``local_size``·q_i to whole counts, and takes that many from each class
    or what is left of it: a class that has run out is not made up for, so late clients are
    smaller. The last client takes all that remains, several times the others' share. With 48,000
    examples and 600 each this is their MNIST run with 80 clients.

    Two departures, neither visible in the result: counts are rounded by the largest remainder
    (theirs: each to the nearest, the largest corrected), and a draw that leaves a client with
    fewer than ``min_size`` examples is repeated (theirs keeps an empty client). Their random
    order is a file of their repository; here it follows from the seed.

    Attributes:
        alpha: concentration, in [1e-6, 1e6]; theirs is 0.5.
        local_size: examples drawn for a client, theirs is 600; None: N // num_clients.
        min_size: the fewest examples a client may end with.
        max_retries: how many times it draws before it gives up.
    """

    alpha: float = 0.5
    local_size: int | None = None
    min_size: int = 1
    max_retries: int = 100

    def __post_init__(self) -> None:
        require_concentration("alpha", self.alpha)
        if self.local_size is not None:
            require_integer("local_size", self.local_size, 1)
        require_integer("min_size", self.min_size, 1)
        require_integer("max_retries", self.max_retries, 1)

    def __call__(
        self,
        labels: NDArray[np.int64],
        num_clients: int,
        num_classes: int,
        rng: np.random.Generator,
    ) -> Shares:
        """See ``Partition``."""
        available = count_classes(labels, num_clients, num_classes, self.min_size)
        size = self.local_size or len(labels) // num_clients

        def draw() -> NDArray[np.int64]:
            left = available.copy()
            counts = np.zeros((num_clients, num_classes), dtype=np.int64)
            mixtures = symmetric_dirichlet(rng, self.alpha, num_clients - 1, num_classes)
            for client, mixture in enumerate(mixtures):
                counts[client] = np.minimum(apportion(size, mixture), left)
                left -= counts[client]
            counts[-1] = left
            return counts

        counts = draw_until_large_enough(
            draw,
            min_size=self.min_size,
            max_retries=self.max_retries,
            remedy=f"raise alpha={self.alpha}, lower min_size, local_size or num_clients",
        )
        return deal(labels, counts, rng)


@dataclass(frozen=True)
class QuantitySkew:
    """Clients of different sizes, with even or Dirichlet-skewed labels.

    Exactly one of ``exponent``, ``groups`` and ``sizes`` says how large they are. With the last
    two, examples beyond the sum stay unused.

    Attributes:
        exponent: at least 0; client i's size follows the power law (i+1)^-exponent, on top of
            ``min_size`` each. 0: equal sizes. All examples are used.
        groups: group name → ``count`` clients of ``size`` examples each, in this order; KD-DPFL's
            MNIST run is ``large``: 5 × 6,000 and ``general``: 40 × 500.
        sizes: every client's number of examples.
        alpha: None: examples whatever their label; a number: labels as in ``Dirichlet`` with
            ``per="client"``.
        min_size: the fewest examples a client may get.
    """

    exponent: float | None = None
    groups: Mapping[str, Mapping[str, int]] | None = None
    sizes: Sequence[int] | None = None
    alpha: float | None = None
    min_size: int = 1

    def __post_init__(self) -> None:
        given = [
            name for name in ("exponent", "groups", "sizes") if getattr(self, name) is not None
        ]
        if len(given) != 1:
            raise ValueError(
                f"exponent={self.exponent}: exactly one of exponent, groups and sizes must be "
                f"set, the others null; set are {given}"
            )
        require_integer("min_size", self.min_size, 1)
        if self.alpha is not None:
            require_concentration("alpha", self.alpha)
        if self.exponent is not None:
            require_number("exponent", self.exponent, 0, 100)
        for name, group in (self.groups or {}).items():
            if not isinstance(group, Mapping) or set(group) != {"count", "size"}:
                raise ValueError(f"groups.{name}={group}: must hold count and size, nothing else")
            require_integer(f"groups.{name}.count", group["count"], 1)
            require_integer(f"groups.{name}.size", group["size"], self.min_size)
        for index, size in enumerate(self.sizes or ()):
            require_integer(f"sizes[{index}]", size, self.min_size)

    def __call__(
        self,
        labels: NDArray[np.int64],
        num_clients: int,
        num_classes: int,
        rng: np.random.Generator,
    ) -> list[NDArray[np.int64]]:
        """See ``murmur.learning.data.partitions.Partition``."""
        available = count_classes(labels, num_clients, num_classes, self.min_size)
        sizes = self.client_sizes(len(labels), num_clients)
        if self.alpha is None:
            return deal_sizes(len(labels), sizes, rng)
        mixtures = symmetric_dirichlet(rng, self.alpha, num_clients, num_classes)
        return deal(labels, draw_counts(sizes, mixtures, available, rng), rng)

    def client_sizes(self, total: int, num_clients: int) -> NDArray[np.int64]:
        """Each client's number of examples out of ``total``, shape (clients,).

        Raises:
            ValueError: the settings name another number of clients, or more than ``total``.
        """
        if self.exponent is not None:
            weights = np.arange(1, num_clients + 1, dtype=np.float64) ** -self.exponent
            return self.min_size + apportion(total - num_clients * self.min_size, weights)
        if self.groups is not None:
            name = "groups"
            sizes = [g["size"] for g in self.groups.values() for _ in range(g["count"])]
        else:
            name = "sizes"
            sizes = list(self.sizes or ())
        if len(sizes) != num_clients:
            raise ValueError(
                f"num_clients={num_clients}: {name} describes {len(sizes)} clients; make them equal"
            )
        if sum(sizes) > total:
            raise ValueError(
                f"{name}={sum(sizes)} examples in all: there are only {total} private ones; "
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

    def __call__(
        self,
        labels: NDArray[np.int64],
        num_clients: int,
        num_classes: int,
        rng: np.random.Generator,
    ) -> list[NDArray[np.int64]]:
        """See ``murmur.learning.data.partitions.Partition``."""
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
        if empty := [client for client, share in enumerate(shares) if not len(share)]:
            raise ValueError(f"settings={self.settings}: leaves client {empty[0]} without examples")
        return shares
