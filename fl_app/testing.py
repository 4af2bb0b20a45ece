"""Tests of an algorithm of one's own: a small federation in this process, and two checks.

    from fl_app.testing import Federation, assert_release_follows_event, random_data

    def test_mine(tmp_path):
        both = [random_data(30, seed=1), random_data(30, seed=2)]
        federation = Federation(
            tmp_path,
            lambda setup: Directions(setup, step=0.1),
            lambda setup: DirectionsClient(setup, learning_rate=0.1),
            both,
            budget=Budget(4.0, 1e-5, rounds=3),
        )
        model = federation.run()
        assert_release_follows_event(federation.client, federation.task(), *both)

Nothing is configured here, and no engine, server or worker starts: the two halves are built from
values, and the host that answers is the one of every run, with its ledger. What a run checks before
it starts (planned cost, statement) is the business of the ``murmur`` command.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import flwr.serverapp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from numpy.typing import NDArray
from torch import nn

from clients.base import Client, ClientSetup
from fl_app.engines.inline import InlineGrid
from murmur.compat.flower_messages import identify
from murmur.learning.array_bytes import array_from_bytes
from murmur.learning.data.examples import Examples, LocalData
from murmur.learning.models import mlp
from murmur.learning.training.trainer import Trainer
from murmur.privacy.accounting import epsilon
from murmur.privacy.audit import empirical_profile, refuted_at
from murmur.privacy.budget import Budget
from murmur.privacy.events import Event, releases
from murmur.privacy.ledger import Ledger
from murmur.privacy.noise import NoiseGenerator
from murmur.round.client_state import ClientState
from murmur.round.host import Host, Noise, SeededNoise, noise_of_this_thread
from murmur.round.secure_party import SecureParties
from murmur.round.setup import ServerSetup
from murmur.round.site import SimulatedSite
from murmur.round.task import RunFacts, Task, parse_tasks
from murmur.secure_sum.settings import SecureSumSettings
from strategies.base import CohortStrategy, Parameters

__all__ = [
    "Federation",
    "Grid",
    "assert_answers_alike",
    "assert_release_follows_event",
    "random_data",
]

ODD_VALUES = (0.0, 1.0, -1.0, 1e3, -1e6, 1e30, -1e30)  # of all entries of a record


class Grid:
    """Flower's grid as far as a strategy asks it who is there.

    Args:
        *nodes: ids of the nodes.
    """

    def __init__(self, *nodes: int) -> None:
        self.nodes = nodes

    def get_node_ids(self) -> Iterable[int]:
        """Returns the ids of the nodes."""
        return list(self.nodes)


def random_data(
    count: int, shape: tuple[int, int, int] = (1, 4, 4), classes: int = 4, seed: int = 1
) -> LocalData:
    """Returns a client's data: ``count`` random images in [0, 1) with random labels."""
    rng = np.random.default_rng(seed)
    images = rng.random((count, *shape), np.float32)
    return LocalData(images, rng.integers(0, classes, count), np.arange(count))


@dataclass(frozen=True)
class _GivenData:
    """The data that a test gives to its clients."""

    data: Sequence[LocalData]

    def of(self, client: int) -> LocalData:
        """Returns the client's data."""
        return self.data[client]

    def blank(self, client: int) -> LocalData | None:
        """Returns None: an error in training refuses the client, as in a simulation."""
        return None


class Federation:
    """A server half and clients with data of a test's own, in this process.

    Args:
        folder: of ledger, keys and what clients remember; anew for each federation.
        server: makes the strategy from a ``ServerSetup``.
        client: makes the client half from a ``ClientSetup``.
        data: those of client 0, 1, ...
        budget: ε and δ, rounds and adversary; by default three rounds without protection.
        model: makes the network from the input's shape (C, H, W) and the number of classes; None: a
            perceptron with eight hidden units.
        classes: number of classes; labels lie below.
        public: the public pool; by default 20 random images.
        seeded_noise: whether noise follows from the seed, so that two federations end alike.

    Attributes:
        strategy: the server half.
        client: the client half, of all clients.
        host: what answers the server's messages, with the clients' ledger.
        model: the global model: the initial one until ``run`` was called.
    """

    def __init__(
        self,
        folder: Path,
        server: Callable[[ServerSetup], CohortStrategy],
        client: Callable[[ClientSetup], Client],
        data: Sequence[LocalData],
        *,
        budget: Budget | None = None,
        model: Callable[..., nn.Module] | None = None,
        classes: int = 4,
        public: NDArray[np.float32] | None = None,
        seeded_noise: bool = True,
    ) -> None:
        identify()
        limits = budget or Budget(np.inf, 1e-5, rounds=3)
        shape = data[0].images.shape[1:]
        trainer = Trainer(model or partial(mlp, hidden=[8]), shape, classes)
        examples = random_data(20, shape, classes, seed=0)
        pool = examples.images if public is None else public
        sizes = tuple(len(one) for one in data)
        self.strategy = server(
            ServerSetup(
                trainer=trainer,
                public=pool,
                test=Examples(examples.images, examples.labels),
                budget=limits,
                seed=1,
                num_clients=len(data),
                cohort_size=len(data),
                quorum=1.0,
                client_sizes=sizes,
                seeded_noise=seeded_noise,
            )
        )
        site = SimulatedSite.of(folder, run="test")
        cohorts = self.strategy.setup.cohorts.cohorts()
        memory = ClientState(site.state_dir)
        self.client = client(
            ClientSetup(trainer, pool, None, limits, 1, memory, sizes, cohorts=cohorts)
        )
        kind = "os"
        noise: Noise = noise_of_this_thread
        if seeded_noise:
            kind = "seeded"
            noise = SeededNoise(1)
        rules = SecureSumSettings().owner_rules()
        people = range(len(data))
        self.host = Host(
            site=site,
            client_ids=people,
            facts=RunFacts(self.strategy.algorithm, limits.delta, limits.rounds, kind),
            client=self.client,
            data=_GivenData(data),
            ledger=Ledger(site.folder / "ledger.sqlite"),
            secure=SecureParties(site, people, rules, is_on=False),
            noise=noise,
        )
        self.model = self.strategy.setup.initial_parameters()

    def run(self) -> Parameters:
        """Does all rounds of the budget from ``model`` on; returns the last model (d,)."""
        arrays = ArrayRecord({"model": Array(self.model)})
        rounds = self.strategy.setup.budget.rounds
        grid = InlineGrid(self._answer, {}, nodes=1)
        result = self.strategy.start(grid, arrays, num_rounds=rounds)
        self.model = array_from_bytes(result.arrays["model"].data)
        return self.model

    def task(self, client: int = 0, number: int = 1) -> Task:
        """Returns what round ``number`` asks of ``client``, as it arrives there.

        For a federation that does not run afterwards: it asks the round anew at each call.
        """
        arrays = ArrayRecord({"model": Array(self.model)})
        grid = cast(flwr.serverapp.Grid, Grid(1))  # no more of it is asked for
        (message,) = self.strategy.configure_train(number, arrays, ConfigRecord(), grid)
        tasks = parse_tasks(message.content, len(self.host.client_ids))
        return next(task for task in tasks if task.client == client)

    def charges(self, client: int) -> Event:
        """Returns all that the ledger has charged for ``client``, as one event."""
        return self.host.ledger.spent(client)

    def _answer(self, message: Message, _: Context) -> Message:
        reply = self.host.answer(message.content, message.metadata.message_type)
        return Message(reply, reply_to=message)


def assert_release_follows_event(
    client: Client,
    task: Task,
    data: LocalData,
    neighbour: LocalData,
    *,
    runs: int = 4000,
    delta: float = 1e-5,
    seed: int = 1,
) -> float:
    """Asserts that what ``client`` releases shows no larger ε than its event says.

    The client releases ``runs`` times for each of two data sets, with fresh noise. A quarter of the
    releases says in which direction they differ, and how often the others fall to either side of a
    threshold there is counted (``murmur.privacy.audit.empirical_profile``). Nothing is assumed of
    the noise: a right client fails with probability 0.001 at most. One that passes is not proven
    right: counting shows ε up to ln(runs), and of a vector the difference of the means alone.

    Args:
        client: a client half of one's own.
        task: what it is asked (``Federation.task``).
        data: a client's data.
        neighbour: another data set, a neighbour by the event: of a client that is exchanged any, of
            a record one that differs in one record.
        runs: releases for each data set; at least 64.
        delta: the δ at which the event is read.
        seed: of the noise.

    Returns:
        The largest ε that was counted at ``delta``; 0 where nothing was seen.

    Raises:
        AssertionError: the releases show more, or ``client`` has no event.
    """
    event = client.event(task)
    assert event is not None, "event: None is a report that costs nothing, and is no release"
    first = next(iter(releases(event)))
    noise = NoiseGenerator.seeded("releases of a test", seed)
    ours, others = (_released(client, task, one, noise, runs) for one in (data, neighbour))
    choosing, measuring = np.s_[0::4], [number for number in range(runs) if number % 4]
    spread = ours[choosing].var(axis=0) + others[choosing].var(axis=0)
    moved = ours[choosing].mean(axis=0) - others[choosing].mean(axis=0)
    # An entry without noise tells everything: it is read as one with hardly any.
    direction = moved / np.maximum(spread, 1e-9 * max(1.0, float(spread.max())))
    counted = empirical_profile(ours[measuring] @ direction, others[measuring] @ direction, delta)

    def proven(at: float) -> float:
        return epsilon(event, at, adjacency=first.adjacency, unit=first.unit).epsilon

    broken = refuted_at(counted, proven)
    if broken is not None:
        raise AssertionError(
            f"{type(client).__name__}: {runs} releases for each of two data sets show ε of at "
            f"least {counted[broken]:.3g} at δ = {broken:g}, and its event says "
            f"{proven(broken):.3g}; the noise is less than charged, or data pass by it"
        )
    return counted[delta]


def _released(
    client: Client, task: Task, data: LocalData, noise: NoiseGenerator, runs: int
) -> NDArray[np.float64]:
    """Releases (runs, d) for one data set, as floats."""
    trained = None
    if not client.noise_in_training:
        trained = client.train(task, data)
    rows = []
    for _ in range(runs):
        if trained is None:
            release = client.answer(task, data, noise)
        else:
            release = client.privatize(trained.copy(), task, noise)
        rows.append(np.asarray(release, np.float64).ravel())
    return np.stack(rows)


def assert_answers_alike(
    client: Client, task: Task, data: LocalData, *, classes: int = 4, seed: int = 1
) -> None:
    """Asserts that ``client`` answers in the same form whatever one record holds.

    One record after another value of ``ODD_VALUES`` in all its entries, with each label: the client
    must answer, with a release of one shape and type that its codec packs to one length, and at one
    price. Where it does not, whether and how a device answers would tell of that record.

    Args:
        client: a client half of one's own.
        task: what it is asked (``Federation.task``).
        data: its data; the last record is exchanged.
        classes: number of classes; every label below is tried.
        seed: of the noise.

    Raises:
        AssertionError: an answer fails or differs in form, with the record that did it.
    """
    expected = None
    for what, odd in _odd_neighbours(data, classes):
        noise = NoiseGenerator.seeded("answers of a test", seed)
        codec = client.codec(task)
        try:
            release = client.answer(task, odd, noise)
            packed = codec.pack(release)
            codec.check(packed)
        except Exception as error:
            raise AssertionError(
                f"{type(client).__name__}: {what} makes it fail ({type(error).__name__}: {error})"
            ) from error
        found = {
            "event": repr(client.event(task)),
            "weight": client.weight(task.client),
            "shape": np.shape(release),
            "type": np.asarray(release).dtype,
            "packed": (packed.dtype, packed.shape),
        }
        expected = expected or found
        for name, value in found.items():
            assert value == expected[name], (
                f"{type(client).__name__}: {what} changes its {name} from {expected[name]} to "
                f"{value}"
            )


def _odd_neighbours(data: LocalData, classes: int) -> Iterator[tuple[str, LocalData]]:
    """``data`` itself, then with its last record exchanged, each with what was done in words."""
    yield "its own data", data
    last = data.indices[-1]
    for value in ODD_VALUES:
        for label in range(classes):
            images = data.images.copy()
            labels = data.labels.copy()
            images[last] = value
            labels[last] = label
            what = f"a record of {value:g} with label {label}"
            yield what, replace(data, images=images, labels=labels)
