"""Tell two neighbours apart by what an adversary sees, as well as somebody who knows both can.

**Neighbours** are two inputs of a client by a claim's own unit and adjacency, as far apart as we
can make them. Where a client is protected, so is whatever its training may lead to, and neighbours
may be two results of training (the canary clients of Andrew et al., "One-shot empirical privacy
estimation for federated learning", ICLR 2024); where a record is, they are two data sets that
differ in one.

A **view** turns one client's data, or its absence, and a noise stream into one vector of numbers,
by the code that releases it: the client's messages, secure sums (``fl_app.audit.sums``), or the
model after them.

The **attack** reduces every vector to one score, its part along the direction in which the
neighbours differ; for noise of one scale that is the likelihood ratio's. ``murmur.privacy.audit``
turns the scores of both into a lower bound on ε.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from clients.base import Canary, Client, Task
from murmur.learning.data.examples import LocalData
from murmur.privacy.accounting import Threat
from murmur.privacy.audit import Audit, Success, audit, success
from murmur.privacy.events import Adjacency, Event, Unit, is_gaussian
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.trade_off import gaussian_fit, normal_fit
from strategies.base import CohortStrategy

_KEY_BYTES = 32
TRIED = 64  # releases of each neighbour that show how well a pair is told apart
_ADDED = 1e-3  # by how much less than this the neighbours' distance may vary with added noise

Floats = NDArray[np.float64]

# What a client's release comes from: its data, the result of its training, or nothing at all.
Source = LocalData | NDArray | None


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


def results_apart(canary: Canary, adjacency: Adjacency) -> Pair:
    """Results of training as far apart as they can be.

    Where a client is exchanged the two are opposite; where it is present or absent, one of them is
    nothing.
    """
    if adjacency is Adjacency.REPLACE_ONE:
        name = "two opposite results of training"
        return Pair(name, canary.result, canary.opposite, canary.direction)
    return Pair("a result of training, or no client", canary.result, None, canary.direction)


def candidate_pairs(data: LocalData, classes: int, unit: Unit, adjacency: Adjacency) -> list[Pair]:
    """Neighbours of a client; which of them is told apart best is tried out.

    Args:
        data: what the client holds.
        classes: how many classes there are.
        unit: what the claim protects: all of a client's data, or one record.
        adjacency: whether it is exchanged, or present or absent.
    """
    own = LocalData(
        np.array(data.images[data.indices]), data.labels[data.indices], np.arange(len(data))
    )
    if unit is Unit.CLIENT:
        one = replace(own, labels=np.zeros_like(own.labels))
        two = replace(own, labels=np.ones_like(own.labels))
        moved = replace(own, labels=(own.labels + 1) % classes)
        if adjacency is Adjacency.REPLACE_ONE:
            return [
                Pair("every label moved on by one", own, moved),
                Pair("all labels 0, or all labels 1", one, two),
            ]
        return [Pair("its data, or no client", own, None)]
    if adjacency is not Adjacency.REPLACE_ONE:
        empty = _images(own, np.nan)
        return [Pair("a white image, or one more null record", _first(empty, 0), empty)]
    black = replace(_images(own, 0.0), labels=np.arange(len(own)) % 2)
    return [
        Pair("a white image, labelled 0 or 1", _first(own, 0), _first(own, 1)),
        Pair("a white image among black ones, labelled 0 or 1", _first(black, 0), _first(black, 1)),
    ]


def _images(data: LocalData, pixel: float) -> LocalData:
    """``data`` with plain images; of NaN they are null records, whose gradient DP-SGD leaves out.

    The number of records is public, and a null record keeps it.
    """
    return replace(data, images=np.full_like(data.images, pixel))


def _first(data: LocalData, label: int) -> LocalData:
    """``data`` with a white image as its first record."""
    images = data.images.copy()
    labels = data.labels.copy()
    images[0] = 1.0
    labels[0] = label
    return replace(data, images=images, labels=labels)


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

    def __call__(self, source: Source, noise: NoiseGenerator) -> NDArray:
        """One release; zeros of a client that is absent."""
        if source is None:
            return np.zeros(self.codec.shape, np.int64)
        return self.integers(self.release(source, noise))

    def release(self, source: LocalData | NDArray, noise: NoiseGenerator) -> NDArray:
        """What the client would send.

        Args:
            source: its data, or a result of training that takes their place.
            noise: where the mechanism draws from.
        """
        if isinstance(source, LocalData) and not self.trains_alone:
            return self.client.answer(self.task, source, noise)
        return self.client.privatize(self.result(source), self.task, noise)

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


def view_of(
    threat: Threat,
    strategy: CohortStrategy,
    messages: Messages,
    count: int,
) -> View | None:
    """What an adversary sees of a client over some rounds.

    Messages and sums of the rounds are added up: for noise of one scale nothing is lost by that. Of
    models it is the last one. Of sums: ``fl_app.audit.sums``.

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


def added(seen: Callable[[Source, NoiseGenerator], NDArray], rounds: int) -> View:
    """What is seen in ``rounds`` rounds, added up: (d,) as floating-point numbers."""

    def view(source: Source, noise: NoiseGenerator) -> NDArray[np.float64]:
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
    scheduled = {n for n in numbers if rate is None and client in strategy.cohort(n)}

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
                present = None
                if drawn or number in scheduled:
                    present = source
                total = messages(present, noise)
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
        fitted: the ε of normal outputs of one variance where ``is_normal``, else of a Gaussian
            trade-off; None where the noise is far from Gaussian.
        is_normal: outputs are known to be normal.
        success: of somebody who guesses which neighbour it was, by the same scores.
    """

    neighbours: str
    runs: int
    counted: Audit
    fitted: float | None
    is_normal: bool
    success: Success

    @property
    def shown(self) -> float:
        """The largest ε that rests on nothing uncertain but the runs."""
        if self.is_normal and self.fitted is not None:
            return max(self.counted.epsilon, self.fitted)
        return self.counted.epsilon


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
    fitted = None
    if is_normal:
        fitted = normal_fit(one, other, delta)
    elif is_gaussian(event):
        fitted = gaussian_fit(one, other, delta)
    return Finding(
        aim.pair.name,
        runs,
        counted=audit(one, other, delta),
        fitted=fitted,
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
        key = keys.bytes(_KEY_BYTES)
        for place, source in enumerate((aim.pair.one, aim.pair.other)):
            row[place] = view(source, NoiseGenerator(key, is_seeded=False)) @ aim.direction
    return scores[:, 0], scores[:, 1]
