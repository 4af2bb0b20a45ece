"""The ε of one adversary, derived from the events that it sees of every client.

An algorithm describes for each adversary what that adversary sees (``Exposure``: events); a
``Guarantee`` derives ε from the events and never takes it as given.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from murmur.privacy import accounting
from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.events import (
    ComposedEvent,
    Event,
    Neighbours,
    RepeatedEvent,
    assumptions_of,
    describe,
    releases,
)
from murmur.privacy.neighbours import departure

if TYPE_CHECKING:
    from murmur.privacy.accounting import PrivacyCost
    from murmur.privacy.audit import CanaryAudit


MAX_NAMED_CLIENTS = 1000  # clients that a statement names one by one


@dataclass(frozen=True)
class Exposure:
    """View of one adversary on every client, and the paper's claim about it.

    ``adversary``: in words. ``per_round``: the event of one participation. ``clients``: by
    name, all that the client released in the run (``by_participations``); phases such as training
    and evaluation compose with ``ComposedEvent``. ``sizes``: how many clients a name stands for,
    where it is not 1. ``claimed_*``: ε of the paper's own theorem, None where it makes no claim.
    ``measured``: a lower bound on the ε of ``per_round``, found by an audit; ``canaries``: what
    those of the run found about the whole of it. ``assumptions``: what
    the adversary's view rests on, beside what the releases state themselves. ``notes``: what else
    a reader of the figures should know.
    """

    threat: Threat
    adversary: str
    per_round: Event
    clients: Mapping[str, Event]
    claimed_per_round: float | None = None
    claimed_total: float | None = None
    measured: float | None = None
    canaries: "CanaryAudit | None" = None
    assumptions: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def by_participations(
    per_round: Event, participations: Mapping[str, int], *phases: Event
) -> dict[str, Event]:
    """``Exposure.clients`` for clients that released ``per_round`` the given number of times.

    ``phases``: what every one of them released besides. A client with 0 participations
    released ``phases`` only.
    """
    totals = {0: ComposedEvent(phases)}
    for count in set(participations.values()) - {0}:
        totals[count] = ComposedEvent((RepeatedEvent(per_round, count), *phases))
    return {client: totals[n] for client, n in participations.items()}


def departures(event: Event, unit: Unit, adjacency: Adjacency) -> list[str]:
    """A sentence for each kind of release in ``event`` that is for other neighbours than these."""
    wanted = Neighbours(unit, adjacency)
    stated = dict.fromkeys(release.neighbours for release in releases(event))
    found = (departure(each, wanted) for each in stated)
    return list(dict.fromkeys(sentence for sentence in found if sentence is not None))


def grouped(exposure: Exposure) -> Exposure:
    """``exposure`` with one name for all clients that released the same."""
    names: dict[Event, str] = {}
    sizes: Counter[str] = Counter()
    for name, event in exposure.clients.items():
        sizes[names.setdefault(event, name)] += exposure.sizes.get(name, 1)
    clients = {name: event for event, name in names.items()}
    return replace(exposure, clients=clients, sizes=sizes)


@dataclass(frozen=True)
class Guarantee:
    """ε against one adversary: claimed, proven, under assumptions, measured.

    Proven totals rest on no assumption and are over clients (disjoint data: the maximum is what
    the run guarantees); ``clients`` holds each one's, and of more than ``MAX_NAMED_CLIENTS`` those
    that released the same stand under the name of one of them. ``sizes``: how many clients a name
    stands for, where it is not 1. ``method`` and ``bounds`` belong to the figure that is
    ``stated``. ``assumed_*``: under all of ``assumptions``, some of which say who the adversary
    is; None without any.
    """

    threat: Threat
    adversary: str
    claimed_per_round: float | None
    claimed_total: float | None
    proven_per_round: float
    proven_total: float
    proven_median: float
    proven_least: float
    most_exposed: str
    method: str
    bounds: dict[str, float]
    clients: dict[str, float]
    sizes: dict[str, int]
    measured: float | None = None
    canaries: "CanaryAudit | None" = None
    assumptions: tuple[str, ...] = ()
    assumed_per_round: float | None = None
    assumed_total: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def stated(self) -> float:
        """The total ε against this adversary, under all that it is taken to rest on."""
        if self.assumed_total is None:
            return self.proven_total
        return self.assumed_total

    @property
    def stated_per_round(self) -> float:
        """ε of one participation, under all that it is taken to rest on."""
        if self.assumed_per_round is None:
            return self.proven_per_round
        return self.assumed_per_round

    @property
    def attack_beats(self) -> bool:
        """True if an attack measured more than is stated of a round."""
        return self.measured is not None and self.measured > self.stated_per_round

    @property
    def canaries_beat(self) -> bool:
        """True if the run's canaries measured more than is stated."""
        return self.canaries is not None and self.canaries.least > self.stated

    @property
    def number_of_clients(self) -> int:
        """How many clients ``clients`` stands for."""
        return sum(self.sizes.get(name, 1) for name in self.clients)

    @classmethod
    def underived(cls, exposure: Exposure) -> "Guarantee":
        """Nothing: every ε that would be derived is infinite."""
        exposure = grouped(exposure)
        return cls(
            threat=Threat(exposure.threat),
            adversary=exposure.adversary,
            claimed_per_round=exposure.claimed_per_round,
            claimed_total=exposure.claimed_total,
            proven_per_round=math.inf,
            proven_total=math.inf,
            proven_median=math.inf,
            proven_least=math.inf,
            most_exposed=next(iter(exposure.clients)),
            method="none",
            bounds={},
            clients=dict.fromkeys(exposure.clients, math.inf),
            sizes={name: size for name, size in exposure.sizes.items() if size != 1},
            measured=exposure.measured,
            canaries=exposure.canaries,
            notes=tuple(exposure.notes),
        )

    @classmethod
    def of(cls, exposure: Exposure, delta: float, unit: Unit, adjacency: Adjacency) -> "Guarantee":
        """Derive every ε from the events in ``exposure``.

        Without assumptions every release is taken to be seen by itself: that a sum or a shuffler
        hides it is one. What is released for other neighbours than ``unit`` and ``adjacency`` say
        counts twice, or as no protection (``neighbours.STEPS``), and a note says so.
        """
        if not exposure.clients:
            raise ValueError("clients={}: an exposure needs at least one client")
        if len(exposure.clients) > MAX_NAMED_CLIENTS:
            exposure = grouped(exposure)
        threat = Threat(exposure.threat)

        def proven(event: Event) -> "PrivacyCost":
            return accounting.epsilon(event, delta, Threat.LOCAL, adjacency, unit=unit)

        def assumed(event: Event) -> "PrivacyCost":
            return accounting.epsilon(event, delta, threat, adjacency, unit=unit, assumptions=None)

        events = set(exposure.clients.values())
        spends = {event: proven(event) for event in events}
        clients = {name: spends[event].epsilon for name, event in exposure.clients.items()}
        sizes = {name: size for name, size in exposure.sizes.items() if size != 1}
        most_exposed = max(clients, key=lambda name: clients[name])
        released = ComposedEvent((exposure.per_round, *events))
        stated = assumptions_of(released)
        rests_on = dict.fromkeys((*exposure.assumptions, *(a.sentence for a in stated)))
        proven_worst = spends[exposure.clients[most_exposed]]
        worst = proven_worst
        assumed_per_round = None
        assumed_total = None
        if rests_on:
            worst = max(map(assumed, events), key=lambda spend: spend.epsilon)
            assumed_per_round = assumed(exposure.per_round).epsilon
            assumed_total = worst.epsilon
        return cls(
            threat=threat,
            adversary=exposure.adversary,
            claimed_per_round=exposure.claimed_per_round,
            claimed_total=exposure.claimed_total,
            proven_per_round=proven(exposure.per_round).epsilon,
            proven_total=proven_worst.epsilon,
            proven_median=_median(clients, sizes),
            proven_least=min(clients.values()),
            most_exposed=most_exposed,
            method=worst.method,
            bounds=dict(worst.bounds),
            clients=clients,
            sizes=sizes,
            measured=exposure.measured,
            canaries=exposure.canaries,
            assumptions=tuple(rests_on),
            assumed_per_round=assumed_per_round,
            assumed_total=assumed_total,
            notes=(*exposure.notes, *departures(released, unit, adjacency)),
        )


def released(exposure: Exposure) -> list[dict[str, Any]]:
    """Releases of clients to one adversary, JSON-safe: how many of each event, and in words."""
    counts: Counter[Event] = Counter()
    for name, event in exposure.clients.items():
        counts[event] += exposure.sizes.get(name, 1)
    return [
        {
            "threat": Threat(exposure.threat).value,
            "adversary": exposure.adversary,
            "clients": count,
            "event": event.to_dict(),
            "release": describe(event),
        }
        for event, count in counts.items()
    ]


def _median(values: Mapping[str, float], sizes: Mapping[str, int]) -> float:
    """The upper median over clients."""
    left = sum(sizes.get(name, 1) for name in values) // 2
    for name in sorted(values, key=lambda name: values[name]):
        left -= sizes.get(name, 1)
        if left < 0:
            return values[name]
    return max(values.values())
