"""Who takes part when, and how much each client counts.

A ``Schedule`` draws the cohorts of a run: at random, in rotation, or as secret Poisson samples.
``Weights`` are public: whatever weight a node claims for its clients is compared with them.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from murmur.learning.array_bytes import MalformedError
from murmur.privacy.budget import Cohorts
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.record_choice import poisson_sample
from murmur.random import experiment_rng

Weigh = Callable[[int], int]


@dataclass(frozen=True)
class Schedule:
    """The cohorts of a run.

    "random" draws ``size`` of all clients afresh in each round. "rotate" takes the next ``size`` in
    an order that is drawn once, so that all are asked equally often (by at most one round) and as
    far apart as possible. "poisson" takes each client by itself with probability size/clients. The
    first two follow from the run's seed, which everybody knows: no privacy is gained from them. The
    third is drawn from the noise stream, and amplifies where the server is trusted.

    Attributes:
        kind: "random", "rotate" or "poisson".
        clients: Clients of the federation; their ids are 0 to clients − 1.
        size: Clients of a cohort; the expected number, where it is a Poisson sample.
        rounds: Rounds of the run.
        seed: The run's seed.
    """

    kind: str
    clients: int
    size: int
    rounds: int
    seed: int

    def cohort(self, number: int, noise: Callable[[str, int], NoiseGenerator]) -> NDArray[np.int64]:
        """The clients of round ``number`` (1, 2, …), ascending.

        The same at each call, but for "poisson": that is drawn anew, so a strategy keeps what it
        has drawn. ``noise``: as ``ServerSetup.noise``; used by "poisson" only.
        """
        if self.kind == "poisson":
            drawn = poisson_sample(self.size / self.clients, self.clients, noise("cohort", number))
            return np.flatnonzero(drawn)
        return np.sort(self.drawn(number))

    def drawn(self, number: int) -> NDArray[np.int64]:
        """The clients of round ``number`` in any order; not of a "poisson" sample."""
        if self.kind == "random":
            rng = experiment_rng(self.seed, "cohort", number)
            return rng.choice(self.clients, self.size, replace=False)
        places = np.arange((number - 1) * self.size, number * self.size) % self.clients
        return self._order[places]

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return experiment_rng(self.seed, "rotation").permutation(self.clients)

    def includes(self, client: int, number: int) -> bool:
        """Returns True if ``client`` may be asked in round ``number``; in secret draws all may."""
        return self.kind == "poisson" or client in _members(self, number)

    @cached_property
    def patterns(self) -> Collection[tuple[int, ...]]:
        """The rounds of each client, equal ones once; of cohorts that follow from the seed.

        Noise that is correlated over rounds is calibrated to them.
        """
        cohorts = [self.drawn(number) for number in range(1, self.rounds + 1)]
        clients = np.concatenate(cohorts)
        rounds = np.repeat(np.arange(1, self.rounds + 1, dtype=np.int32), self.size)
        by_client = np.argsort(clients, kind="stable")
        starts = np.flatnonzero(np.diff(clients[by_client])) + 1
        return {tuple(own.tolist()) for own in np.split(rounds[by_client], starts)}

    @property
    def participations(self) -> int:
        """In how many rounds one client is asked at most, over the whole run.

        A budget for the run is shared out over so many. Of Poisson samples: all rounds.
        """
        if self.kind == "poisson" or self.size == self.clients:
            return self.rounds
        if self.kind == "rotate":
            return min(self.rounds, -(-self.rounds * self.size // self.clients))
        return _most(self)

    def cohorts(self) -> Cohorts:
        """Returns the cohorts as accounting needs them: ``rate`` is set for secret samples only."""
        if self.kind == "poisson":
            rate = self.size / self.clients
        else:
            rate = None
        return Cohorts(self.clients, self.size, rate, lambda: self.patterns, self.includes)


@lru_cache(maxsize=4)
def _most(schedule: Schedule) -> int:
    """In how many rounds the client is asked that is drawn most often."""
    asked = np.zeros(schedule.clients, np.int32)
    for number in range(1, schedule.rounds + 1):
        asked[schedule.drawn(number)] += 1
    return int(asked.max())


@lru_cache(maxsize=4)
def _members(schedule: Schedule, number: int) -> frozenset[int]:
    return frozenset(schedule.drawn(number).tolist())


@dataclass(frozen=True)
class Weights:
    """Public weights of clients in a sum.

    Weights are public and declared before any data are read: one that follows the data is data.

    Attributes:
        of: A client's weight, a whole number, by its id.
        least, greatest: Bounds on all weights. The noise of others hides a client less the
            more it weighs.
    """

    of: Weigh
    least: int = 1
    greatest: int = 1


ALIKE = Weights(lambda client: 1)  # every client counts as much


def require_weight(weight: object, answered: Sequence[int], weigh: Weigh) -> int:
    """``weight`` if the clients ``answered`` can have it together, else MalformedError.

    ``weight``: what a node claims, or a secure sum holds. ``weigh``: a client's public weight.
    """
    if type(weight) is not int:
        raise MalformedError(f"weight={weight!r:.40}: must be an integer")
    right = sum(weigh(client) for client in answered)
    if weight != right:
        raise MalformedError(f"weight={weight}: by these clients' public sizes it is {right}")
    return weight
