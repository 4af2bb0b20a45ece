"""What an adversary sees of one client in one round, made by the code that releases it.

A view turns one client's data, or its absence, and a noise stream into one vector of numbers: the
client's message, a secure sum, or the next model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from clients.base import Client, Task
from fl_app.audit.neighbours import Source
from learning.data.examples import LocalData
from privacy.accounting import Threat
from privacy.events import Event, SecurelySummedEvent
from privacy.noise import NoiseGenerator
from strategies.base import CohortStrategy

_MANY = 1e4
View = Callable[[Source, NoiseGenerator], NDArray[np.float64]]


class Messages:
    """A client's releases, in the integers that are summed.

    Training that draws no noise is done once for each data set: its result is the same each time.
    """

    def __init__(self, client: Client, task: Task) -> None:
        self.client, self.task, self.codec = client, task, client.codec(task)
        self.trains_alone = not client.noise_in_training
        self._trained: dict[int, tuple[LocalData, NDArray]] = {}

    def __call__(self, source: Source, noise: NoiseGenerator) -> NDArray:
        """One release; zeros of a client that is absent."""
        if source is None:
            return np.zeros(self.codec.shape, np.int64)
        if isinstance(source, LocalData) and not self.trains_alone:
            release = self.client.answer(self.task, source, noise)
        else:
            release = self.client.privatize(self.result(source), self.task, noise)
        return self.codec.expand(self.codec.pack(release), 1)

    def result(self, source: LocalData | NDArray) -> NDArray:
        """What training leads to, before protection."""
        if not isinstance(source, LocalData):
            return source
        if id(source) not in self._trained:
            self._trained[id(source)] = source, self.client.train(self.task, source)
        return self._trained[id(source)][1]

    def largest(self, source: LocalData) -> NDArray:
        """The result of training, many times as large where that is clipped only afterwards."""
        result = self.result(source)
        if np.issubdtype(result.dtype, np.integer):
            return result
        try:
            self.client.privatize(_MANY * result, self.task, NoiseGenerator.from_os())
        except ValueError:  # training ends with a result of a norm that it must not exceed
            return result
        return _MANY * result


def view_of(
    threat: Threat, event: Event, strategy: CohortStrategy, messages: Messages, known: Source
) -> View | None:
    """What the adversary of ``threat`` sees of a release that costs ``event``; None: not written.

    ``known``: what the other clients of a sum hold, as far as the adversary is concerned.
    """
    if threat in (Threat.LOCAL, Threat.OUTSIDER):
        return lambda source, noise: messages(source, noise).ravel().astype(np.float64)
    if threat is Threat.SECURE_AGGREGATION and isinstance(event, SecurelySummedEvent):
        return _sums(messages, event.honest_clients, known)
    if threat is Threat.CENTRAL:
        return _models(strategy, messages)
    return None


def over(view: View, rounds: int) -> View:
    """What the adversary has of a client that was asked the same in ``rounds`` rounds: their sum.

    For noise of one scale nothing is lost by adding up.
    """

    def seen(source: Source, noise: NoiseGenerator) -> NDArray[np.float64]:
        total = view(source, noise)
        for _ in range(rounds - 1):
            total = total + view(source, noise)
        return total

    return seen


def _sums(messages: Messages, honest: int, known: Source) -> View:
    """The sum over ``honest`` clients: of the others only the noise is unknown."""

    def view(source: Source, noise: NoiseGenerator) -> NDArray[np.float64]:
        total = messages(source, noise)
        for _ in range(honest - 1):
            total = total + messages(known, noise)
        return total.ravel().astype(np.float64)

    return view


def _models(strategy: CohortStrategy, messages: Messages) -> View:
    """The next model, where the server adds the noise; what other clients send is known."""
    before, setup, model = strategy.state(), strategy.setup, messages.task.model
    rate = setup.cohorts.cohorts().rate or 1.0

    def view(source: Source, noise: NoiseGenerator) -> NDArray[np.float64]:
        strategy.restore(before)
        # Where cohorts are secret samples, nobody knows whether the client was asked.
        asked = rate == 1 or int(noise.uint32(1)[0]) < rate * 2**32
        strategy.setup = replace(setup, seeded_noise=noise.is_seeded)
        try:
            total = messages(source if asked else None, noise)
            return strategy.update(1, model, total, setup.cohort_size).astype(np.float64)
        finally:
            strategy.setup = setup

    return view
