"""How the private examples are divided among the clients.

A partition is a frozen value, called with the labels, the number of clients, the number of classes
and a generator; it returns one sorted array of rows for each client (``Shares``). No example goes
to two clients; every example goes to some client unless the class says otherwise. The result is a
function of the arguments alone. A partition that cannot be had raises ValueError, after a bounded
number of tries where it is drawn at random. Below the partitions stands what they share: a
partition decides how many examples of each class every client gets, then deals them out.

``FlowerPartitioner`` is any partitioner of flwr-datasets by its name. Ours are those that it lacks,
or whose bits published runs rest on: exact shards, mixtures for each client, PrivateKT's own, sizes
by groups or a power law. They draw from the run's own stream, need no further package, and give
every client an example or say why they cannot.
"""

import inspect
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from murmur.common import experiment_rng, require_integer
from murmur.settings import Count, settings

Rows = NDArray[np.int64]
Rng = np.random.Generator
# α = 1e-6 is one class for each client to every digit, 1e6 is even; beyond them there is nothing.
Concentration = Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)]
_TURNS = 16  # in which clients draw their examples
_BLOCK = 4096  # clients that draw at once
_NOBODY = -1  # has a row that stays unused


class Shares(Sequence[Rows]):
    """Every client's rows, one sorted array each: client i's are ``shares[i]``.

    Arrays hold them, and no object stands for a client, so that there may be a million.
    """

    @property
    @abstractmethod
    def sizes(self) -> Rows:
        """How many rows each client has, (clients,)."""

    @abstractmethod
    def among(self, rows: Rows) -> "Shares":
        """The same shares of ``rows``, whose places these shares number."""

    @abstractmethod
    def of(self, client: int) -> Rows:
        """The rows of ``client``, in 0..len − 1."""

    def __getitem__(self, client: int) -> Rows:  # type: ignore[override]
        """The rows of ``client``; IndexError where there is no such client. No slices."""
        if not 0 <= client < len(self):
            raise IndexError(f"client={client}: there are {len(self)} clients")
        return self.of(client)


@dataclass(frozen=True, eq=False)
class Dealt(Shares):
    """Shares of which no two overlap.

    Attributes:
        rows: those of client 0, then those of client 1, and so on; sorted within a client.
        ends: (clients,), where each client's end in ``rows``.
    """

    rows: Rows
    ends: Rows

    @classmethod
    def to(cls, owners: Rows, num_clients: int) -> "Dealt":
        """From ``owners`` (N,): which client has each row, ``_NOBODY`` where none has it."""
        sizes = np.bincount(owners[owners != _NOBODY], minlength=num_clients)
        ends = np.cumsum(sizes)
        unused = len(owners) - ends[-1]
        return cls(np.argsort(owners, kind="stable")[unused:], ends)

    @classmethod
    def joined(cls, shares: Sequence[Rows]) -> "Dealt":
        """From one sorted array for each client."""
        return cls(np.concatenate(shares), np.cumsum([len(rows) for rows in shares]))

    @property
    def sizes(self) -> Rows:
        """See ``Shares``."""
        return np.diff(self.ends, prepend=0)

    def among(self, rows: Rows) -> "Dealt":
        """See ``Shares``."""
        return Dealt(rows[self.rows], self.ends)

    def of(self, client: int) -> Rows:
        """See ``Shares``."""
        start = self.ends[client - 1] if client else 0
        return self.rows[start : self.ends[client]]

    def __len__(self) -> int:
        return len(self.ends)


@dataclass(frozen=True, eq=False)
class Drawn(Shares):
    """Shares that are drawn whenever they are asked for, and kept nowhere; they overlap.

    Attributes:
        rows: all that can be drawn, class by class.
        ends: (classes,), where each class ends in ``rows``.
        clients: how many there are.
        size: rows of each; one that is drawn twice is there twice.
        alpha: concentration of the clients' mixtures of classes; None: as the data are mixed.
        seed: from which, with a client's number, its rows follow.
    """

    rows: Rows
    ends: Rows
    clients: int
    size: int
    alpha: float | None
    seed: int

    @property
    def sizes(self) -> Rows:
        """See ``Shares``."""
        return np.full(self.clients, self.size)

    def among(self, rows: Rows) -> "Drawn":
        """See ``Shares``."""
        return replace(self, rows=rows[self.rows])

    def of(self, client: int) -> Rows:
        """See ``Shares``."""
        rng = experiment_rng(self.seed, "owner", client=client)
        if self.alpha is None:
            return np.sort(rng.choice(self.rows, self.size))
        available = np.diff(self.ends, prepend=0)
        present = np.flatnonzero(available)
        mixture = symmetric_dirichlet(rng, self.alpha, 1, len(present))[0]
        classes = present.repeat(rng.multinomial(self.size, mixture))
        starts = self.ends - available
        return np.sort(self.rows[starts[classes] + rng.integers(available[classes])])

    def __len__(self) -> int:
        return self.clients


class Partition(Protocol):
    """Divides examples among clients."""

    def __call__(
        self, labels: Rows, num_clients: int, num_classes: int, rng: Rng
    ) -> Sequence[Rows]:
        """One sorted array of rows of ``labels`` (N,) for each client: a list, or ``Shares``.

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


def label_counts(shares: Iterable[Rows], labels: Rows, num_classes: int) -> Rows:
    """How many examples of each class each client has, shape (clients, classes)."""
    return np.stack([np.bincount(labels[share], minlength=num_classes) for share in shares])


@settings
class IID:
    """Examples in random order, cut into shares whose sizes differ by at most one."""

    def __call__(self, labels: Rows, num_clients: int, num_classes: int, rng: Rng) -> Shares:
        """See ``Partition``."""
        count_classes(labels, num_clients, num_classes)
        return deal_sizes(len(labels), even_sizes(len(labels), num_clients), rng)


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

    def __call__(self, labels: Rows, num_clients: int, num_classes: int, rng: Rng) -> Shares:
        """See ``Partition``."""
        available = count_classes(labels, num_clients, num_classes, self.min_size)
        sizes = even_sizes(len(labels), num_clients)
        mixtures = symmetric_dirichlet(rng, self.alpha, num_clients, num_classes)
        return deal(labels, draw_counts(sizes, mixtures, available, rng), rng)


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

    def __call__(self, labels: Rows, num_clients: int, num_classes: int, rng: Rng) -> Shares:
        """See ``Partition``."""
        ends = np.cumsum(count_classes(labels, 1, num_classes))
        rows = np.argsort(labels, kind="stable")
        seed = int(rng.integers(2**63))
        return Drawn(rows, ends, num_clients, self.size, self.alpha, seed)


@settings
class Natural:
    """Each client is one owner of examples, as the data set says (``Dataset.owners``).

    Where there are fewer clients than owners, those are drawn at random, and the examples of the
    others stay unused. Called with the owners in place of the labels.
    """

    by_owner: ClassVar[bool] = True

    def __call__(self, owners: Rows, num_clients: int, num_classes: int, rng: Rng) -> Shares:
        """See ``Partition``."""
        present, whose = np.unique(owners, return_inverse=True)
        if num_clients > len(present):
            raise ValueError(
                f"num_clients={num_clients}: the data have {len(present)} owners for clients; "
                "lower federation.num_clients to that"
            )
        chosen = np.sort(rng.permutation(present)[:num_clients])
        clients = np.full(len(present), _NOBODY)
        clients[np.searchsorted(present, chosen)] = np.arange(num_clients)
        return Dealt.to(clients[whose], num_clients)


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

    def __call__(self, labels: Rows, num_clients: int, num_classes: int, rng: Rng) -> Shares:
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
        return deal(labels, counts, rng)


@settings
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

    alpha: Concentration = 0.5
    local_size: Count | None = None
    min_size: Count = 1
    max_retries: Count = 100

    def __call__(self, labels: Rows, num_clients: int, num_classes: int, rng: Rng) -> Shares:
        """See ``Partition``."""
        available = count_classes(labels, num_clients, num_classes, self.min_size)
        size = self.local_size or len(labels) // num_clients
        if size > len(labels):
            raise ValueError(f"local_size={size}: must be at most the {len(labels)} examples")

        smallest = 0
        for _ in range(self.max_retries):
            counts = self._draw(available, size, num_clients, rng)
            smallest = max(smallest, int(counts.sum(axis=1).min()))
            if smallest >= self.min_size:
                return deal(labels, counts, rng)
        raise ValueError(
            f"min_size={self.min_size}: no draw in max_retries={self.max_retries} gave every "
            f"client so many examples, the best gave the smallest {smallest}; raise "
            f"alpha={self.alpha}, lower min_size, local_size or num_clients"
        )

    def _draw(self, available: Rows, size: int, num_clients: int, rng: Rng) -> Rows:
        """Counts (clients, classes) of one draw, out of ``available`` (classes,) examples."""
        mixtures = symmetric_dirichlet(rng, self.alpha, num_clients - 1, len(available))
        wanted = np.cumsum(apportion(size, mixtures), axis=0)
        taken = np.concatenate([np.minimum(wanted, available), available[None]])
        return np.diff(taken, axis=0, prepend=0)


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

    def __call__(self, labels: Rows, num_clients: int, num_classes: int, rng: Rng) -> Shares:
        """See ``Partition``."""
        available = count_classes(labels, num_clients, num_classes, self.min_size)
        sizes = self.client_sizes(len(labels), num_clients)
        if self.alpha is None:
            return deal_sizes(len(labels), sizes, rng)
        mixtures = symmetric_dirichlet(rng, self.alpha, num_clients, num_classes)
        return deal(labels, draw_counts(sizes, mixtures, available, rng), rng)

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

    def __call__(self, labels: Rows, num_clients: int, num_classes: int, rng: Rng) -> Shares:
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
        if empty := [client for client, share in enumerate(shares) if not len(share)]:
            raise ValueError(f"settings={self.settings}: leaves client {empty[0]} without examples")
        return Dealt.joined(shares)


def even_sizes(total: int, clients: int) -> Rows:
    """``total`` cut into ``clients`` sizes that differ by at most one, the larger ones first."""
    sizes = np.full(clients, total // clients, dtype=np.int64)
    sizes[: total % clients] += 1
    return sizes


def apportion(total: int, weights: NDArray[np.float64]) -> Rows:
    """``total`` cut in proportion to ``weights`` (sum above 0) by the largest remainder.

    Along the last axis: several rows of weights cut ``total`` each by itself. The counts sum to
    ``total`` and each differs from its exact share by less than one.
    """
    exact = total * (weights / weights.sum(axis=-1, keepdims=True))
    counts = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(counts - exact, axis=-1, kind="stable")
    missing = total - counts.sum(axis=-1, keepdims=True)
    more = np.broadcast_to(np.arange(weights.shape[-1]) < missing, counts.shape)
    raised = np.zeros_like(counts)
    np.put_along_axis(raised, by_remainder, more, axis=-1)
    return counts + raised


def symmetric_dirichlet(rng: Rng, alpha: float, rows: int, columns: int) -> NDArray[np.float64]:
    """``rows`` draws from Dirichlet(α, …, α) over ``columns`` categories; each row sums to 1.

    A Gamma(α) variable is Gamma(α+1) · U^(1/α); taken in logarithms this cannot underflow, where
    normalised Gamma draws give 0/0 for a small α.
    """
    shape = (rows, columns)
    logs = np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def draw_counts(
    sizes: Rows,
    proportions: NDArray[np.float64],
    available: Rows,
    rng: Rng,
) -> Rows:
    """Counts (clients, classes): client i draws ``sizes[i]`` examples, by ``proportions[i]``.

    Without replacement. Where a class has run out, the rest is drawn from the classes left, in
    the client's own proportions, and where these are all 0, in proportion to what is left. The
    clients draw a sixteenth of their examples at a time, in turn: were each to draw all of its
    own at once, the last ones would be left with a single class. (Acar et al. 2021,
    arXiv:2111.04263, let a random client draw one example at a time in their code.)

    Args:
        sizes: shape (clients,), with a sum of at most that of ``available``.
        proportions: shape (clients, classes), rows sum to 1.
        available: how many examples each class has, shape (classes,).
        rng: the experiment's randomness.
    """
    left = available.copy()
    counts = np.zeros(proportions.shape, dtype=np.int64)
    for turn in range(_TURNS):
        portions = (turn + 1) * sizes // _TURNS - turn * sizes // _TURNS
        clients = np.flatnonzero(portions)
        length = _BLOCK
        while len(clients):
            block = clients[:length]
            drawn = _draw_block(portions[block], proportions[block], left, rng)
            counts[block[: len(drawn)]] += drawn
            left -= drawn.sum(axis=0)
            clients = clients[len(drawn) :]
            length = min(2 * len(drawn) + 16, _BLOCK)
            if len(drawn) < len(block):
                client = clients[0]
                drawn = _draw_rest(int(portions[client]), proportions[client], left, rng)
                counts[client] += drawn
                left -= drawn
                clients = clients[1:]
    return counts


def _draw_block(portions: Rows, proportions: NDArray[np.float64], left: Rows, rng: Rng) -> Rows:
    """What the first of these clients draw, one after the other, while no class runs out.

    Args:
        portions: how many examples each draws, (clients,).
        proportions: (clients, classes).
        left: examples of each class, (classes,).
        rng: is then where these draws leave it, whatever was tried beyond them.

    Returns:
        (k, classes) for the first k clients; where k is below their number, the next one meets the
        end of a class.
    """
    weights = np.where(left > 0, proportions, 0.0)
    totals = weights.sum(axis=1, keepdims=True)
    sound = _until(np.logical_or.reduce(totals == 0, axis=1))
    state = rng.bit_generator.state
    drawn = rng.multinomial(portions[:sound], weights[:sound] / totals[:sound])
    # A class that has run out before is no matter: nobody draws from it.
    ends = (np.cumsum(drawn, axis=0) >= left) & (left > 0)
    within = _until(np.logical_or.reduce(ends, axis=1))
    if within == len(drawn):
        return drawn
    rng.bit_generator.state = state
    return rng.multinomial(portions[:within], weights[:within] / totals[:within])


def _until(found: NDArray[np.bool_]) -> int:
    """How many stand before the first that is true."""
    return int(found.argmax()) if found.any() else len(found)


def _draw_rest(missing: int, proportions: NDArray[np.float64], left: Rows, rng: Rng) -> Rows:
    """One client's draw of ``missing`` examples, (classes,), where a class may run out."""
    left = left.copy()
    counts = np.zeros(len(left), dtype=np.int64)
    while missing:
        weights = np.where(left > 0, proportions, 0.0)
        if weights.sum() == 0:
            weights = left.astype(np.float64)
        drawn = np.minimum(rng.multinomial(missing, weights / weights.sum()), left)
        counts += drawn
        left -= drawn
        missing -= int(drawn.sum())
    return counts


def deal(labels: Rows, counts: Rows, rng: Rng) -> Shares:
    """Each client's sorted indices: of class c, client i gets ``counts[i, c]``, at random."""
    clients = np.arange(len(counts))
    owners = np.full(len(labels), _NOBODY)
    for category in range(counts.shape[1]):
        pool = rng.permutation(np.flatnonzero(labels == category))
        holders = np.repeat(clients, counts[:, category])
        owners[pool[: len(holders)]] = holders
    return Dealt.to(owners, len(counts))


def deal_sizes(total: int, sizes: Rows, rng: Rng) -> Shares:
    """Sorted indices below ``total``, ``sizes[i]`` for client i, whatever their labels."""
    return deal(np.zeros(total, np.int64), sizes[:, None], rng)


def count_classes(labels: Rows, num_clients: int, num_classes: int, min_size: int = 1) -> Rows:
    """How many examples each class has, shape (classes,), once the request is seen to be sound.

    Raises:
        ValueError: a label is outside [0, num_classes), or the examples do not suffice for
            ``num_clients`` clients of ``min_size`` each.
    """
    require_integer("num_clients", num_clients, 1)
    require_integer("num_classes", num_classes, 1)
    if len(labels) < num_clients:
        raise ValueError(
            f"num_clients={num_clients}: there are only {len(labels)} private examples, and each "
            "client needs at least one; lower num_clients"
        )
    if len(labels) < num_clients * min_size:
        raise ValueError(
            f"min_size={min_size}: {num_clients} clients of that size need "
            f"{num_clients * min_size} examples, there are {len(labels)}; lower min_size or "
            "num_clients"
        )
    if not (labels.min() >= 0 and labels.max() < num_classes):
        raise ValueError(
            f"labels={labels.min()}..{labels.max()}: must lie in [0, num_classes={num_classes})"
        )
    return np.bincount(labels, minlength=num_classes)
