"""What KD-DPFL's pseudo-labels cost a large client, by the mechanism that makes them private.

Both halves of the algorithm, and the budget planner, need the same answer: the client adds the
noise, the server states it, the planner prints it. Symbols: ε = the client's ε_label, q =
``queries``, C = ``classes``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from murmur.common import require_count
from murmur.privacy.accounting.calibrate import label_epsilon
from murmur.privacy.events import Adjacency, Event, NonPrivateEvent, Release, Unit
from murmur.privacy.mechanisms import RandomizedResponse
from murmur.privacy.mechanisms.noisy_votes import NoisyVotes
from murmur.privacy.mechanisms.sampled_gaussian import LotSchedule

MECHANISMS = ("dpsgd_teacher", "pate", "rr", "none")
FEWEST_TEACHERS = 50


@dataclass(frozen=True)
class Labelling:
    """How pseudo-labels are made and protected.

    ``mechanism``: ``dpsgd_teacher`` trains a teacher by DP-SGD (``schedule``), whose
    labels are then free; ``pate`` puts ``noise`` on the votes of
    ``teachers`` per client; ``rr`` randomises each label; ``none`` protects nothing.
    ``allow_few``: let fewer than 50 PATE teachers, over all ``clients``, vote.
    """

    mechanism: str
    queries: int
    classes: int
    schedule: LotSchedule
    noise: str = "gaussian"
    teachers: int = 50
    clients: int = 1
    allow_few: bool = False

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(
                f"labelling.mechanism={self.mechanism!r}: must be one of {', '.join(MECHANISMS)}"
            )
        for name in ("queries", "teachers"):
            require_count(f"labelling.{name}", getattr(self, name))
        if self.noise not in ("gaussian", "laplace"):
            raise ValueError(f"labelling.noise={self.noise!r}: must be 'gaussian' or 'laplace'")
        total = self.teachers * self.clients
        if self.mechanism == "pate" and total < FEWEST_TEACHERS and not self.allow_few:
            raise ValueError(
                f"labelling.teachers={self.teachers}: with {self.clients} large clients only "
                f"{total} teachers vote, too few to be heard over the noise (at least "
                f"{FEWEST_TEACHERS}); raise it, or set labelling.allow_few=true"
            )

    def votes(self, epsilon: float, delta: float) -> NoisyVotes:
        """The noise on a client's histogram of votes."""
        return _votes(self.noise, epsilon, delta, self.queries)

    def randomiser(self, epsilon: float, delta: float) -> RandomizedResponse:
        """The randomiser of each label: all q tell of the same data, so their losses add up."""
        return RandomizedResponse(
            _label_epsilon(epsilon, delta, self.classes, self.queries), self.classes
        )

    def event(self, epsilon: float, delta: float, size: int) -> Event:
        """All that a client with ``size`` examples releases in the label stage."""
        if self.mechanism == "none" or math.isinf(epsilon):
            return NonPrivateEvent()
        if self.mechanism == "dpsgd_teacher":
            return self.schedule.event(epsilon, delta, size)
        if self.mechanism == "pate":
            # A record that takes another's place moves the vote of the one teacher that saw it.
            votes = self.votes(epsilon, delta).event()
            return Release(votes, Unit.RECORD, Adjacency.REPLACE_ONE)
        return self.randomiser(epsilon, delta).release(self.queries)

    def describe(self, epsilon: float, delta: float, size: int) -> str:
        """The mechanism and its noise, in a few words."""
        if self.mechanism == "none" or math.isinf(epsilon):
            return "labels without noise"
        if self.mechanism == "dpsgd_teacher":
            return f"teacher by {self.schedule.describe(epsilon, delta, size)}"
        if self.mechanism == "pate":
            scale = self.votes(epsilon, delta).scale
            return f"PATE, {self.noise} noise of {scale:.3g} votes, {self.queries} queries"
        each = self.randomiser(epsilon, delta).epsilon
        return f"randomised response at ε={each:.3g} for each of {self.queries} labels"


@lru_cache(maxsize=256)
def _votes(noise: str, epsilon: float, delta: float, queries: int) -> NoisyVotes:
    return NoisyVotes.calibrated(noise, epsilon, delta, queries)


@lru_cache(maxsize=256)
def _label_epsilon(epsilon: float, delta: float, classes: int, queries: int) -> float:
    return label_epsilon(epsilon, delta, classes, queries)
