"""The words of a policy file: mechanisms with their limits, and rules for foreign apps."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from murmur.privacy import events
from murmur.privacy.events import Event


@dataclass(frozen=True)
class Mechanism:
    """A mechanism as policies name it, and what makes it weak.

    Attributes:
        name: the policy's word for it.
        event: the class of the events that it causes.
        limit: the policy's key, ``max_…`` or ``min_…``.
        strength: what that key limits, read from an event of that class.
    """

    name: str
    event: type[Event]
    limit: str
    strength: Callable[[Any], float]

    @property
    def is_least(self) -> bool:
        """True if the limit is the least strength, rather than the greatest, that is allowed."""
        return self.limit.startswith("min_")

    def allows(self, event: Event, limit: float) -> bool:
        """True if ``event`` is no weaker than ``limit``; NaN never is."""
        strength = self.strength(event)
        if self.is_least:
            return strength >= limit
        return strength <= limit


def _grid_noise(event: events.DiscreteGaussianEvent) -> float:
    """The noise multiplier of noise on a grid."""
    return event.sigma / event.sensitivity


_epsilon = attrgetter("epsilon")
_noise = attrgetter("noise_multiplier")
_MIN_NOISE_KEY = "min_noise_multiplier"
MECHANISMS = {
    mechanism.name: mechanism
    for mechanism in (
        # One label, not the whole message.
        Mechanism("randomized_response", events.RandomizedResponseEvent, "max_epsilon", _epsilon),
        Mechanism("randomized_bits", events.RandomizedBitsEvent, "max_gamma", attrgetter("gamma")),
        Mechanism("gaussian", events.GaussianEvent, _MIN_NOISE_KEY, _noise),
        Mechanism("discrete_gaussian", events.DiscreteGaussianEvent, _MIN_NOISE_KEY, _grid_noise),
        Mechanism("laplace", events.LaplaceEvent, _MIN_NOISE_KEY, _noise),
        Mechanism("pure", events.PureEvent, "max_epsilon", _epsilon),
    )
}
"""The mechanisms that a policy can allow, by name."""


@dataclass(frozen=True)
class AloneRules:
    """Protection of a training that a server asks for without Murmur (`murmur guard`).

    Attributes:
        epsilon: of one answer, at the policy's δ, against whoever reads it.
        clip: the L2 norm to which the change of the model is clipped.
    """

    epsilon: float
    clip: float


@dataclass(frozen=True)
class GuardRules:
    """Resources and data of a foreign app that is locked in (`murmur guard`).

    Attributes:
        bundles: SHA-256, in lower-case hex, of the apps that may run; empty: any.
        data: folders and files that an app may read.
        writes: folders in ``data`` where an app may make files, which end with its answer.
        app_seconds: how long one answer may take an app; it is ended then.
        answer_seconds: after how long an answer leaves, whatever the app did: never earlier.
        cpu_seconds: processor time of each of its processes.
        memory, disk: bytes that all of its processes together may have.
        processes: how many it may have, threads counted for each user but root.
        unprotected: how a server is answered that does not sum under Murmur; None: not at all.
    """

    bundles: tuple[str, ...]
    data: tuple[Path, ...]
    app_seconds: float
    answer_seconds: float
    cpu_seconds: int
    memory: int
    disk: int
    processes: int
    unprotected: AloneRules | None = None
    writes: tuple[Path, ...] = ()
