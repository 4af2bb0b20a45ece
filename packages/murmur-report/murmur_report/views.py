"""What an adversary sees of one client: its messages, or the models after them.

A view turns one client's data, or its absence, and a noise stream into one vector of numbers, by
the code that releases it. ``sums`` has the view of secure sums.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fl_app.audit_api import Client, CohortStrategy, LocalData, Task
from murmur.privacy.accounting import Threat
from murmur.privacy.noise import NoiseGenerator

# What a client's release comes from: its data, the result of its training, or nothing at all.
Source = LocalData | NDArray | None
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
        """Returns a release as the client would send it.

        Args:
            source: its data, or a result of training that takes their place.
            noise: where the mechanism draws from.
        """
        if isinstance(source, LocalData) and not self.trains_alone:
            return self.client.answer(self.task, source, noise)
        # A copy: it may be overwritten, and the same result is released again.
        return self.client.privatize(self.result(source).copy(), self.task, noise)

    def integers(self, release: NDArray) -> NDArray:
        """Returns the term of a sum for ``release``: packed, and weighted as in the run."""
        return self.codec.expand(self.codec.pack(release), self.weight)

    def result(self, source: LocalData | NDArray) -> NDArray:
        """Returns the result of training, before protection."""
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
    """Returns an adversary's view of a client over some rounds.

    Messages and sums of the rounds are added up, which loses nothing for noise of one scale. Of
    models the last one is seen. For sums: ``SecureSum``.

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
    """Returns the view of ``rounds`` rounds, added up: (d,) as floating-point numbers."""

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
