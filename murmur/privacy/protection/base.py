"""What every protection of averaged updates can do, on the client and on the server."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from murmur.privacy.budget import Budget
from murmur.privacy.cohorts import Cohorts
from murmur.privacy.events import Adjacency, Event
from murmur.privacy.noise import NoiseGenerator
from murmur.privacy.statement import Exposure


class Protection(ABC):
    """Bounds and noises vectors (d,) that many clients contribute to a mean.

    Both halves of an algorithm make one from the same settings, for the same budget and cohorts.

    Attributes:
        name: in words, for the statement.
        threats: against whom it can keep a budget (``Budget.threat``).
        weighted: whether clients count by their number of examples, rather than alike.
        adjacency: between which data sets it hides the difference.
        extra: entries of a release beyond the vector's own.
        clip: the largest norm of a vector in this round.
        bound: the largest absolute entry of a release, in integers; None for real numbers.
        shared: whether the noise relies on other clients' in the same sum.
        extendable: whether rounds can be added to a run that has begun.
    """

    name: ClassVar[str]
    threats: ClassVar[tuple[str, ...]] = ()
    weighted: ClassVar[bool] = False
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE
    claim: ClassVar[str] = ""
    difference: ClassVar[str] = ""
    extendable: ClassVar[bool] = True
    extra: int = 0
    clip: float = math.inf
    bound: int | None = None
    shared: bool = False

    def __init__(self, budget: Budget, cohorts: Cohorts) -> None:
        protection = f"{type(self).__name__.lower()} protection"
        budget.require_threat(protection, self.threats)
        self.budget, self.cohorts = budget, cohorts

    @property
    def always_published(self) -> bool:
        """Whether every round must be published, however few have answered."""
        return False

    # Client ---------------------------------------------------------------------------------

    @abstractmethod
    def release_event(self) -> Event:
        """What one message costs its client, to whoever reads it."""

    @abstractmethod
    def release(
        self, vector: NDArray[np.float64], clip: float | None, noise: NoiseGenerator
    ) -> NDArray[Any]:
        """What leaves the client of ``vector`` (d,): (d + extra,).

        ``clip``: the norm that the server states (``arrays``). ValueError if not finite.
        """

    # Server ---------------------------------------------------------------------------------

    def noise_on_a_sum(self) -> float:
        """Standard deviation on an entry of a round's sum, in clipping norms."""
        return 0.0

    def arrays(self) -> dict[str, NDArray]:
        """What clients must be told in this round."""
        return {}

    @abstractmethod
    def mean(
        self, number: int, total: NDArray[np.int64], weight: int, noise: NoiseGenerator
    ) -> NDArray[np.float64]:
        """The mean (d,) that round ``number`` makes public, from the sum (d + extra,).

        Without a ``bound``, in the units of ``total``'s integers.
        """

    def published(self, participations: Mapping[int, int]) -> list[Exposure]:
        """What is seen by those who see the server's models only, where the server is trusted."""
        return []

    def spent(self, participations: Mapping[int, int]) -> Event | None:
        """What the most exposed client has paid for in ``published``; None where it is empty."""
        return None

    def state(self) -> dict[str, NDArray]:
        """What a checkpoint must hold."""
        return {}

    def restore(self, state: Mapping[str, NDArray]) -> None:  # noqa: B027
        """Take up what ``state`` returned."""

    def forget(self) -> None:  # noqa: B027
        """The last round is over: drop raw sums, if any are kept."""
