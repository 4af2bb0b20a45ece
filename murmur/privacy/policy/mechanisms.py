"""The mechanisms that a policy can allow, and what makes each of them weak."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from murmur.privacy.events import (
    ComposedEvent,
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PoissonSampledEvent,
    PureEvent,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    Release,
    RepeatedEvent,
    SummedEvent,
)


@dataclass(frozen=True)
class Mechanism:
    """A mechanism as policies name it.

    ``limit``: the policy's key, ``max_…`` or ``min_…``. ``strength``: what it limits, read from
    an event of class ``event``.
    """

    name: str
    event: type[Event]
    limit: str
    strength: Callable[[Any], float]

    def allows(self, event: Event, limit: float) -> bool:
        """Whether ``event`` is no weaker than ``limit``; NaN never is."""
        strength = self.strength(event)
        return strength >= limit if self.limit.startswith("min_") else strength <= limit


MECHANISMS = {
    mechanism.name: mechanism
    for mechanism in (
        # One label, not the whole message.
        Mechanism(
            "randomized_response", RandomizedResponseEvent, "max_epsilon", lambda e: e.epsilon
        ),
        Mechanism("randomized_bits", RandomizedBitsEvent, "max_gamma", lambda e: e.gamma),
        Mechanism("gaussian", GaussianEvent, "min_noise_multiplier", lambda e: e.noise_multiplier),
        Mechanism(
            "discrete_gaussian",
            DiscreteGaussianEvent,
            "min_noise_multiplier",
            lambda e: e.sigma / e.sensitivity,
        ),
        Mechanism("laplace", LaplaceEvent, "min_noise_multiplier", lambda e: e.noise_multiplier),
        Mechanism("pure", PureEvent, "max_epsilon", lambda e: e.epsilon),
    )
}


def mechanism_of(event: Event) -> Mechanism | None:
    """The mechanism behind an elementary event; None for one that no policy can allow."""
    return next((m for m in MECHANISMS.values() if type(event) is m.event), None)


def elements(event: Event) -> Iterator[Event]:
    """The elementary events in ``event``, and the secure sums around them.

    Sampling is looked through: it does not let a mechanism be weaker. A shuffled event counts as
    elementary, and so as one that no policy can allow: a device cannot see who shuffles.
    """
    waiting = [event]
    while waiting:
        current = waiting.pop()
        if isinstance(current, ComposedEvent):
            waiting.extend(reversed(current.events))
        elif isinstance(current, RepeatedEvent | PoissonSampledEvent | Release):
            waiting.append(current.event)
        else:
            yield current
            if isinstance(current, SummedEvent):
                waiting.append(current.event)
