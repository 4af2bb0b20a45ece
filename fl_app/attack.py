"""Attacks on what a configured run releases: its adversaries tell two neighbours apart.

They do it as well as somebody who knows both can; `murmur audit` drives them. Clients that join a
run and measure its ε while it goes on (``audit=canaries``) are in ``fl_app.run.canaries``.

**Neighbours** are two inputs of a client by a claim's own unit and adjacency, as far apart as we
can make them (``neighbours``, the one place that decides). Where a client is protected, so is
whatever its training may lead to, and neighbours may be two results of training (the canary clients
of Andrew et al., "One-shot empirical privacy estimation for federated learning", ICLR 2024); where
a record is, they are two data sets that differ in one.

A unit that contributes nothing is a *null* one: a record that counts as none, a client of such
records. Whoever reads messages or sums sees a message of it all the same: the model that training
starts from, with noise. Only in what a trusted server publishes may it be absent (None).

A **view** turns one client's data, or its absence, and a noise stream into one vector of numbers,
by the code that releases it: the client's messages, secure sums (``SecureSum``), or the model after
them.

The **attack** reduces every vector to one score, its part along the direction in which the
neighbours differ; for noise of one scale that is the likelihood ratio's. ``murmur.privacy.audit``
turns the scores of both into a lower bound on ε.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from clients.base import Client, LocalData, Task, has_canaries, null_records
from clients.protected_evaluation import EvaluationClient
from fl_app.engines.inline import InlineGrid
from fl_app.run.hosts import SimulatedHost
from murmur.compat.flower_messages import identify
from murmur.privacy.accounting import Threat
from murmur.privacy.audit import (
    Interval,
    Success,
    empirical_profile,
    gaussian_fit,
    normal_fit,
    success,
)
from murmur.privacy.events import Adjacency, Event, Unit, is_gaussian, releases
from murmur.privacy.guarantee import Exposure
from murmur.privacy.noise import NoiseGenerator
from murmur.round import client_evaluation
from murmur.round.phase import Phase
from murmur.round.question import Outcome
from murmur.round.secure_summation import SecureSummation
from murmur.round.task import RECORD
from strategies.base import CohortStrategy

_KEY_BYTES = 32
TRIED = 64  # releases of each neighbour that show how well a pair is told apart
_ADDED = 1e-3  # by how much less than this the neighbours' distance may vary with added noise

Floats = NDArray[np.float64]

# What a client's release comes from: its data, the result of its training, or nothing at all.
Source = LocalData | NDArray | None
CHECKED = 4  # draws that go the whole way


@dataclass(frozen=True)
class Pair:
    """Two inputs of a client that a claim says cannot be told apart.

    Attributes:
        name: in words.
        one, other: data, results of training, or None: the client is absent.
        direction: where messages and sums of the two differ, if that is known.
    """

    name: str
    one: Source
    other: Source
    direction: NDArray | None = None


View = Callable[[Source, NoiseGenerator], NDArray[np.float64]]


class Messages:
    """A client's releases, in the integers that are summed.

    Training that draws no noise is done once for each data set: its result is the same each time.

    Args:
        client: of the run, whose own code trains, protects and packs.
        task: what it is asked.
    """

    def __init__(self, client: Client, task: Task) -> None:
        self.client = client
        self.task = task
        self.codec = client.codec(task)
        self.weight = client.weight(task.client)
        self.trains_alone = not client.noise_in_training
        self._trained: dict[int, tuple[LocalData, NDArray]] = {}

    def __call__(self, source: LocalData | NDArray, noise: NoiseGenerator) -> NDArray:
        """One release."""
        return self.integers(self.release(source, noise))

    def release(self, source: LocalData | NDArray, noise: NoiseGenerator) -> NDArray:
        """What the client would send.

        Args:
            source: its data, or a result of training that takes their place.
            noise: where the mechanism draws from.
        """
        if isinstance(source, LocalData) and not self.trains_alone:
            return self.client.answer(self.task, source, noise)
        # A copy: it may be overwritten, and the same result is released again.
        return self.client.privatize(self.result(source).copy(), self.task, noise)

    def integers(self, release: NDArray) -> NDArray:
        """What ``release`` adds to a sum: packed, and weighted as in the run."""
        return self.codec.expand(self.codec.pack(release), self.weight)

    def result(self, source: LocalData | NDArray) -> NDArray:
        """What training leads to, before protection."""
        if not isinstance(source, LocalData):
            return source
        if id(source) not in self._trained:
            self._trained[id(source)] = source, self.client.train(self.task, source)
        return self._trained[id(source)][1]


def neighbours(
    messages: Messages, own: LocalData, exposure: Exposure, unit: Unit, adjacency: Adjacency
) -> list[Pair]:
    """Neighbours of the client that is attacked; which are told apart best is tried out.

    They are made of its data. Where its release protects a client, that of a record included, two
    results of training as far apart as they can be are among them; of an evaluation, two results.

    Args:
        messages: the client, and what it is asked.
        own: what it holds.
        exposure: who tells them apart, which decides what is seen of a client that contributes
            nothing; and what one release costs, which says what that hides.
        unit: what the claim protects: all of a client's data, or one record.
        adjacency: whether it is exchanged, for anything or for nothing, or present or absent.
    """
    client = messages.client
    own = LocalData(np.array(own.images[own.indices]), own.labels[own.indices], np.arange(len(own)))
    nulls = null_records(own)
    nobody: Source = nulls
    if (
        exposure.threat is Threat.CENTRAL
    ):  # a trusted server publishes the same as without the client
        nobody = None
    if unit is Unit.CLIENT:
        pairs = _clients_apart(own, nobody, client.trainer.num_classes, adjacency)
    else:
        pairs = _records_apart(own, nulls, adjacency)
    if isinstance(client, EvaluationClient):
        one, other = client.apart()
        pairs.append(Pair("two results as far apart as they can be", one, other))
    elif messages.trains_alone and has_canaries(client) and _hides_clients(exposure.per_round):
        pairs.append(_results_apart(messages, nobody, adjacency, exposure.threat))
    return pairs


def _hides_clients(event: Event) -> bool:
    """Whether it hides whatever a client's training leads to, rather than one record in it."""
    return all(release.unit is Unit.CLIENT for release in releases(event))


def _clients_apart(
    own: LocalData, nobody: Source, classes: int, adjacency: Adjacency
) -> list[Pair]:
    """Two clients by their data; ``nobody``: the one that contributes nothing."""
    zeros = replace(own, labels=np.zeros_like(own.labels))
    if adjacency is Adjacency.REPLACE_ONE:
        ones = replace(own, labels=np.ones_like(own.labels))
        moved = replace(own, labels=(own.labels + 1) % classes)
        return [
            Pair("every label moved on by one", own, moved),
            Pair("all labels 0, or all labels 1", zeros, ones),
        ]
    alike = replace(zeros, images=np.ones_like(own.images))  # whose gradients are all the same
    return [
        Pair("its data, or a client that contributes nothing", own, nobody),
        Pair("white images, labelled 0, or a client that contributes nothing", alike, nobody),
    ]


def _records_apart(own: LocalData, nulls: LocalData, adjacency: Adjacency) -> list[Pair]:
    """Two data sets that differ in the first record; ``nulls``: as many that count as none."""
    if adjacency is Adjacency.REPLACE_SPECIAL:
        return [Pair("a white image, or one more null record", _first(nulls, 0), nulls)]
    if adjacency is Adjacency.ADD_REMOVE:
        fewer = replace(nulls, indices=nulls.indices[1:])
        return [Pair("a white image, or one record less", _first(nulls, 0), fewer)]
    labels = np.arange(len(own)) % 2
    black = replace(own, images=np.zeros_like(own.images), labels=labels)
    return [
        Pair("a white image, labelled 0 or 1", _first(own, 0), _first(own, 1)),
        Pair("a white image among black ones, labelled 0 or 1", _first(black, 0), _first(black, 1)),
    ]


def _results_apart(
    messages: Messages, nobody: Source, adjacency: Adjacency, threat: Threat
) -> Pair:
    """Results of training as far apart as they can be.

    Where a client is exchanged the two are opposite; else one of them is that of ``nobody``.
    """
    canary = messages.client.canary(messages.task, 0, 1)
    direction: NDArray | None = canary.direction
    if threat is Threat.CENTRAL:  # in a model it is another one
        direction = None
    if adjacency is Adjacency.REPLACE_ONE:
        name = "two opposite results of training"
        return Pair(name, canary.result, canary.opposite, direction)
    name = "a result of training, or a client that contributes nothing"
    return Pair(name, canary.result, nobody, direction)


def _first(data: LocalData, label: int) -> LocalData:
    """``data`` with a white image as its first record."""
    images = data.images.copy()
    labels = data.labels.copy()
    images[0] = 1.0
    labels[0] = label
    return replace(data, images=images, labels=labels)


def view_of(
    threat: Threat,
    strategy: CohortStrategy,
    messages: Messages,
    count: int,
) -> View | None:
    """What an adversary sees of a client over some rounds.

    Messages and sums of the rounds are added up: for noise of one scale nothing is lost by that. Of
    models it is the last one. Of sums: ``SecureSum``.

    ``threat``: of the adversary. ``messages``: how the client's releases are made. ``count``:
    rounds.

    Returns:
        None where no such view is written.
    """
    if threat in (Threat.LOCAL, Threat.OUTSIDER):
        return added(messages, count)
    if threat is Threat.CENTRAL:
        return _model(strategy, messages, count)
    return None


def added(seen: Callable[[LocalData | NDArray, NoiseGenerator], NDArray], rounds: int) -> View:
    """What is seen in ``rounds`` rounds, added up: (d,) as floating-point numbers."""

    def view(source: Source, noise: NoiseGenerator) -> NDArray[np.float64]:
        assert source is not None  # whoever reads messages sees that a client is absent
        total = seen(source, noise)
        for _ in range(rounds - 1):
            total = total + seen(source, noise)
        return total.ravel().astype(np.float64)

    return view


def _model(strategy: CohortStrategy, messages: Messages, rounds: int) -> View:
    """The model after ``rounds`` rounds, where the server adds the noise.

    What other clients send is known; the client sends the same whenever it is asked (a canary). The
    strategy is put back as it was after every view.
    """
    before = strategy.state()
    setup = strategy.setup
    client = messages.task.client
    rate = setup.cohorts.cohorts().rate
    numbers = range(1, rounds + 1)
    scheduled = {n for n in numbers if rate is None and client in strategy.rounds.cohort(n)}

    def view(source: Source, noise: NoiseGenerator) -> NDArray[np.float64]:
        strategy.restore(before)
        # The server's noise follows from the stream as well, so that neighbours can share it.
        seed = int(noise.uint64(1)[0] >> np.uint64(1))
        strategy.setup = replace(setup, seeded_noise=True, seed=seed)
        try:
            model = messages.task.model
            for number in numbers:
                # Where cohorts are secret samples, nobody knows whether the client was asked.
                drawn = rate is not None and int(noise.uint32(1)[0]) < rate * 2**32
                total = np.zeros(messages.codec.shape, np.int64)
                if source is not None and (drawn or number in scheduled):
                    total = messages(source, noise)
                if not strategy.summed:  # the others' rows are zeros
                    total = total[np.newaxis]
                model = strategy.update(number, model, total, setup.cohort_size)
            return model.astype(np.float64)
        finally:
            strategy.setup = setup

    return view


@dataclass(frozen=True)
class Finding:
    """What an attack achieved.

    Attributes:
        neighbours: the pair, in words.
        runs: how often each of the two was seen.
        counted: a lower bound on ε that rests on nothing but the runs.
        profile: lower bounds by δ, the claim's own and others; all of them together rest on nothing
            but the runs.
        estimate: the ε of normal outputs of one variance where ``is_normal``, else of a Gaussian
            trade-off; None where the noise is far from Gaussian.
        is_normal: outputs are known to be normal, if the code adds the noise that it says.
        success: of somebody who guesses which neighbour it was, by the same scores.
    """

    neighbours: str
    runs: int
    counted: float
    profile: dict[float, float]
    estimate: Interval | None
    is_normal: bool
    success: Success

    @property
    def likely(self) -> float:
        """The largest ε at least, if outputs are normal where they are known to be: no proof."""
        if self.is_normal and self.estimate is not None:
            return max(self.counted, self.estimate.low)
        return self.counted


@dataclass(frozen=True)
class _Aim:
    """How a pair is attacked.

    Attributes:
        direction: (d,), along which releases of the two differ.
        distance: by how much, on average.
        is_added: noise only adds to what is seen of the data, so their distance is always the same.
    """

    pair: Pair
    direction: Floats
    distance: float
    is_added: bool


def attack(
    view: View, pairs: Sequence[Pair], delta: float, runs: int, scouts: int, event: Event
) -> Finding:
    """Attack with the pair that is told apart best.

    Directions come from draws of their own, so the runs that measure stay fresh.

    Args:
        view: what the adversary sees of one neighbour and a noise stream, (d,).
        pairs: neighbours by the claim that is tested.
        delta: at which ε is stated.
        runs: how often each neighbour of the chosen pair is seen.
        scouts: releases of each neighbour that find the direction.
        event: what is seen costs this; it says whether noise is Gaussian.
    """
    aims = [_aim(view, pair, scouts) for pair in pairs]
    if all(aim.is_added for aim in aims):  # to the same noise
        aim = max(aims, key=lambda aim: aim.distance)
    else:
        aim = max(aims, key=lambda aim: _separation(view, aim))
    one, other = _both(view, aim, runs)
    is_normal = aim.is_added and is_gaussian(event, exactly=True)
    estimate = None
    if is_normal:
        estimate = normal_fit(one, other, delta, shared=True)
    elif is_gaussian(event):
        estimate = gaussian_fit(one, other, delta)
    profile = empirical_profile(one, other, delta)
    return Finding(
        aim.pair.name,
        runs,
        counted=profile[delta],
        profile=profile,
        estimate=estimate,
        is_normal=is_normal,
        success=max(success(one, other), success(other, one), key=lambda found: found.auc),
    )


def _aim(view: View, pair: Pair, scouts: int) -> _Aim:
    """How releases of the neighbours differ on average, or along a direction that is known.

    Both are drawn from the same noise stream, so that noise which is added cancels. For noise of
    one scale this is the likelihood ratio's direction. What may be chance is left out.

    ``scouts``: how many releases of each are drawn.
    """
    gaps = np.array(
        [
            view(pair.one, NoiseGenerator.seeded("scout", number))
            - view(pair.other, NoiseGenerator.seeded("scout", number))
            for number in range(scouts)
        ]
    )
    mean = gaps.mean(axis=0)
    deviation = gaps.std(axis=0)
    distance = float(np.linalg.norm(mean))
    is_added = bool(np.linalg.norm(deviation) <= _ADDED * distance)
    if pair.direction is not None:
        direction = pair.direction.ravel().astype(np.float64)
    else:
        direction = np.where(np.abs(mean) > 3 * deviation / math.sqrt(scouts), mean, 0.0)
    return _Aim(pair, direction, distance, is_added)


def _separation(view: View, aim: _Aim) -> float:
    """Standard deviations of the noise between the neighbours, along the direction."""
    one, other = _both(view, aim, TRIED)
    gap = abs(float(one.mean() - other.mean()))
    # Where cohorts are samples, the spread of those without the client is that of the noise.
    spread = float(min(one.std(), other.std()))
    if spread > 0:
        return gap / spread
    if gap > 0:
        return math.inf
    return 0.0


def _both(view: View, aim: _Aim, runs: int) -> tuple[Floats, Floats]:
    """Scores of both neighbours, (runs,) each.

    The i-th of both come from the same fresh noise stream, which changes neither's law and makes
    the distance of their means known at once where noise is added.
    """
    keys = NoiseGenerator.from_os()
    scores = np.empty((runs, 2))
    for row in scores:
        key = keys.uint8(_KEY_BYTES).tobytes()
        for place, source in enumerate((aim.pair.one, aim.pair.other)):
            row[place] = view(source, NoiseGenerator(key, is_seeded=False)) @ aim.direction
    return scores[:, 0], scores[:, 1]


class SumRefusedError(Exception):
    """No sum came about; the message says who refused it, and why."""


class Asked(SimulatedHost):
    """A host whose clients release what the attack draws, in one sum after the other."""

    def begin(self, draw: Callable[[Any, Task], NDArray]) -> None:
        """A run of its own: whoever was asked in an earlier one can be asked again.

        Args:
            draw: (client half, task) -> release; everything before and after is the host's own.
        """
        self.site = replace(self.site, run=uuid4().hex)
        self.train = lambda half, task, data, noise: draw(half, task)


class SecureSum:
    """Secure sums of round 1 in which one client is attacked, as the server sees them.

    The strategy of the run asks for the sum and unmasks it, real nodes charge, release and mask.
    The fewest clients answer that a sum may be over, the lightest ones beside the one that is
    attacked, and the server knows what colluders among them have sent.

    What clients release is drawn with noise of the attack's own, by their own code. Of the first
    draws the sum goes the whole way, through policy, ledger, collector, masks and unmasking, and
    must be, to the last bit, the weighted sum of what was drawn; later draws are added up as these
    were.

    Args:
        strategy: of a configuration with secure sums on.
        node: hosts the victim.
        others: hosts everybody else; it may be asked for other settings.
        victim: the client that is attacked.

    Raises:
        SumRefusedError: no sum comes about.

    Attributes:
        charged: what the victim's ledger holds for one such sum.
        parts: client -> what it releases there.
    """

    def __init__(self, strategy: CohortStrategy, node: Asked, others: Asked, victim: int) -> None:
        self.strategy = strategy
        self.node = node
        self.others = others
        self.victim = victim
        self.parts: dict[int, Messages] = {}
        self._fresh = strategy.state()
        self._model = strategy.setup.initial_parameters()
        self._data: dict[int, LocalData] = {}
        self._answering: list[int] = []  # of these the last ``colluders`` tell what they send
        self._colluders = strategy.setup.secure_sums.colluders
        self._checked = 0
        identify()
        self._whole_way(self.data_of(victim), NoiseGenerator.from_os())
        self.charged = list(node.ledger.events(victim))[-1]

    def __call__(self, source: LocalData | NDArray, noise: NoiseGenerator) -> NDArray:
        """One sum in which the victim's part comes from ``source``, less what colluders sent.

        The first draws go the whole way; later ones are added up as these were.
        """
        if self._checked == CHECKED:
            return _added_up(self._part(client, source, noise) for client in self._hidden)
        self._checked += 1
        return self._whole_way(source, noise)

    def _part(self, client: int, source: LocalData | NDArray, noise: NoiseGenerator) -> NDArray:
        """What ``client`` adds to the sum, of its own data or, of the victim, of ``source``."""
        if client != self.victim:
            source = self.data_of(client)
        return self.parts[client](source, noise)

    def data_of(self, client: int) -> LocalData:
        """What ``client`` holds."""
        if client not in self._data:
            self._data[client] = self._host(client).data.of(client)
        return self._data[client]

    def _host(self, client: int) -> Asked:
        """The node that hosts ``client``."""
        if client == self.victim:
            return self.node
        return self.others

    @property
    def _hidden(self) -> list[int]:
        """Those whose noise the server does not know."""
        return self._answering[: len(self._answering) - self._colluders]

    def _whole_way(self, source: LocalData | NDArray, noise: NoiseGenerator) -> NDArray:
        """The same through nodes, ledgers, masks and unmasking.

        Raises:
            SumRefusedError: a node refuses its part.
            RuntimeError: what is unmasked is not, to the last bit, the sum of what was drawn.
        """
        drawn: dict[int, NDArray] = {}

        def draw(half: Client, task: Task) -> NDArray:
            part = self.parts.setdefault(task.client, Messages(half, task))
            own = source if task.client == self.victim else self.data_of(task.client)
            release = part.release(own, noise)
            drawn[task.client] = part.integers(release)
            return release

        for node in (self.node, self.others):
            node.begin(draw)
        strategy = self.strategy
        strategy.restore(self._fresh)
        strategy.rounds.outcome = Outcome(0)
        unmasked = self._round(strategy)
        if not np.array_equal(unmasked, _added_up(drawn.values())):
            raise RuntimeError("what was unmasked is not the sum of what clients released")
        return _added_up(drawn[client] for client in self._hidden)

    def _round(self, strategy: CohortStrategy) -> NDArray:
        """The sum that ``strategy`` unmasks, over the fewest clients that it may be over."""
        grid = InlineGrid(self._answer, {}, strategy.setup.num_clients)
        model = ArrayRecord({"model": Array(self._model)})
        messages, phase = self._ask(strategy, model, grid)
        invited = {client: each for each in messages for client in _clients(each, "task")}
        if self.victim not in invited:
            raise _refused(phase.outcome)
        self._answering = self._fewest(phase, invited)
        outcome = phase.take(self._answer_of(client, invited[client]) for client in self._answering)
        if self.victim not in outcome.answered:
            raise _refused(outcome)
        return outcome.total

    def _ask(
        self, strategy: CohortStrategy, model: ArrayRecord, grid: Grid
    ) -> tuple[list[Message], Phase]:
        """What the server asks in round 1, in a sum of its own, and the phase that this begins."""
        strategy.rounds.sums.run = uuid4().hex
        messages = list(strategy.configure_train(1, model, ConfigRecord(), grid))
        assert strategy.rounds.phase is not None
        return messages, strategy.rounds.phase

    @staticmethod
    def weights(strategy: CohortStrategy, node: SimulatedHost) -> dict[int, int]:
        """Of the clients that are asked."""
        return {
            int(client): node.client.weight(int(client)) for client in strategy.rounds.cohort(1)
        }

    def _fewest(self, phase: Phase, invited: Iterable[int]) -> list[int]:
        """The victim, and the lightest of the others that its sum needs."""
        summation = phase.summation
        assert isinstance(summation, SecureSummation)
        [terms] = [each for each in summation.journal.terms if self.victim in each.clients]
        others = [c for c in terms.clients if c in set(invited) - {self.victim}]
        weights = self.weights(self.strategy, self.others)
        return [self.victim, *sorted(others, key=weights.__getitem__)[: terms.minimum - 1]]

    def _answer(self, message: Message, _: Context) -> Message:
        """What the node of a message's only client answers."""
        [client] = _clients(message, RECORD)
        return self._answer_of(client, message)

    def _answer_of(self, client: int, message: Message) -> Message:
        """What the node of ``client`` answers."""
        kind = message.metadata.message_type
        return Message(self._host(client).answer(message.content, kind), reply_to=message)


class EvaluationSums(SecureSum):
    """The same of the strategy's evaluation."""

    def _ask(
        self, strategy: CohortStrategy, model: ArrayRecord, grid: Grid
    ) -> tuple[list[Message], Phase]:
        evaluation = strategy.rounds.evaluation
        assert evaluation is not None
        evaluation.sums.run = uuid4().hex
        messages = evaluation.messages(evaluation.every, model, grid)
        protected = [
            each
            for each in messages
            if each.content["task"]["purpose"] == client_evaluation.PROTECTED
        ]
        return protected, evaluation.phases[client_evaluation.PROTECTED]

    @staticmethod
    def weights(strategy: CohortStrategy, node: SimulatedHost) -> dict[int, int]:
        """Everybody counts alike."""
        assert strategy.rounds.evaluation is not None
        return dict.fromkeys(
            map(int, strategy.rounds.evaluation.cohort(strategy.rounds.evaluation.every)), 1
        )


def _added_up(parts: Iterable[NDArray]) -> NDArray:
    """The sum of integers of one shape."""
    return np.sum(list(parts), axis=0)


def _refused(outcome: Outcome) -> SumRefusedError:
    """Who failed first, and why; nobody, where no sum was asked for."""
    client, why = next(iter(outcome.failed.items()), ("nobody", "said why"))
    return SumRefusedError(f"client {client}: {why}")


def _clients(message: Message, record: str) -> list[int]:
    """Whom ``message`` is for."""
    named = message.content.config_records[record]["clients"]
    assert isinstance(named, list)
    return [int(client) for client in named]
