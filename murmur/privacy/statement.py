"""A run's privacy statement: the claimed and the proven ε of every adversary.

An algorithm describes, for each adversary, what that adversary sees of every client
(``Exposure``: events); the statement derives ε from the events and never takes it as given. Its
words are a function of the value: ``murmur.privacy.statement_text``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from murmur.privacy.accounting import Adjacency, Spend, Threat, Unit, epsilon
from murmur.privacy.audit import CanaryAudit
from murmur.privacy.events import ComposedEvent, Event, RepeatedEvent, assumptions_of

MOST_NAMED = 1000  # clients that a statement names one by one
_INFINITY = "infinity"


@dataclass(frozen=True)
class Exposure:
    """What one adversary sees of every client, and what the paper claims about it.

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
    canaries: CanaryAudit | None = None
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
    totals = {n: _total(per_round, n, phases) for n in set(participations.values())}
    return {client: totals[n] for client, n in participations.items()}


def _grouped(exposure: Exposure) -> Exposure:
    """``exposure`` with one name for all clients that released the same."""
    names: dict[Event, str] = {}
    sizes: Counter[str] = Counter()
    for name, event in exposure.clients.items():
        sizes[names.setdefault(event, name)] += exposure.sizes.get(name, 1)
    clients = {name: event for event, name in names.items()}
    return replace(exposure, clients=clients, sizes=sizes)


def _total(per_round: Event, participations: int, phases: tuple[Event, ...]) -> Event:
    if participations < 0:
        raise ValueError(f"participations={participations}: must be at least 0")
    if participations == 0:
        return ComposedEvent(phases)
    return ComposedEvent((RepeatedEvent(per_round, participations), *phases))


@dataclass(frozen=True)
class Guarantee:
    """ε against one adversary: claimed, proven, under assumptions, measured.

    Proven totals rest on no assumption and are over clients (disjoint data: the maximum is what
    the run guarantees); ``clients`` holds each one's, and of more than ``MOST_NAMED`` those that
    released the same stand under the name of one of them. ``sizes``: how many clients a name stands
    for, where it is not 1. ``method`` and ``bounds`` belong to
    the figure that is ``stated``. ``assumed_*``: under all of ``assumptions``, some of which say
    who the adversary is; None without any.
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
    canaries: CanaryAudit | None = None
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
    def number_of_clients(self) -> int:
        """How many clients ``clients`` stands for."""
        return sum(self.sizes.get(name, 1) for name in self.clients)

    @classmethod
    def of(cls, exposure: Exposure, delta: float, unit: Unit, adjacency: Adjacency) -> Guarantee:
        """Derive every ε from the events in ``exposure``.

        Without assumptions every release is taken to be seen by itself: that a sum or a shuffler
        hides it is one. What protects less than ``unit`` is no protection.
        """
        if not exposure.clients:
            raise ValueError("clients={}: an exposure needs at least one client")
        if len(exposure.clients) > MOST_NAMED:
            exposure = _grouped(exposure)
        threat = Threat(exposure.threat)

        def proven(event: Event) -> Spend:
            return epsilon(event, delta, Threat.LOCAL, adjacency, unit=unit)

        def assumed(event: Event) -> Spend:
            return epsilon(event, delta, threat, adjacency, unit=unit, assumptions=None)

        events = set(exposure.clients.values())
        spends = {event: proven(event) for event in events}
        clients = {name: spends[event].epsilon for name, event in exposure.clients.items()}
        sizes = {name: size for name, size in exposure.sizes.items() if size != 1}
        most_exposed = max(clients, key=lambda name: clients[name])
        stated = assumptions_of(ComposedEvent((exposure.per_round, *events)))
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
            notes=tuple(exposure.notes),
        )


@dataclass(frozen=True)
class Statement:
    """The privacy statement of a run.

    ``claim``: what the paper's theorem says, in words. ``difference``: one sentence on why
    proven differs from claimed. ``void``: reasons for which no figure here may be relied on.
    ``split``: what lies where nothing protects it though its owners are protected, if anything.
    """

    algorithm: str
    unit: Unit
    adjacency: Adjacency
    delta: float
    guarantees: tuple[Guarantee, ...]
    claim: str = ""
    difference: str = ""
    warnings: tuple[str, ...] = ()
    void: tuple[str, ...] = ()
    split: str = ""

    @classmethod
    def of(
        cls,
        algorithm: str,
        unit: Unit,
        adjacency: Adjacency,
        delta: float,
        exposures: Sequence[Exposure],
        claim: str = "",
        difference: str = "",
        warnings: Iterable[str] = (),
        void: Iterable[str] = (),
        split: str = "",
    ) -> Statement:
        """Derive every ε from the events in ``exposures``, one guarantee each.

        Raises ValueError without exposures, or for a ``delta`` not in [0, 1).
        """
        if not exposures:
            raise ValueError("exposures=[]: needs at least one adversary")
        unit = Unit(unit)
        adjacency = Adjacency(adjacency)
        return cls(
            algorithm=algorithm,
            unit=unit,
            adjacency=adjacency,
            delta=delta,
            guarantees=tuple(Guarantee.of(e, delta, unit, adjacency) for e in exposures),
            claim=claim,
            difference=difference,
            warnings=tuple(warnings),
            void=tuple(void),
            split=split,
        )

    @property
    def is_private(self) -> bool:
        """Whether ε is proven against some adversary, and nothing makes the figures void."""
        return not self.void and any(math.isfinite(g.proven_total) for g in self.guarantees)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-safe mapping; an infinite ε is the string "infinity"."""
        return {f.name: _jsonable(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Statement:
        """The inverse of ``to_dict``; raises ValueError for anything else."""
        try:
            return cls(
                **{
                    **plain,
                    "unit": Unit(plain["unit"]),
                    "adjacency": Adjacency(plain["adjacency"]),
                    "guarantees": tuple(_guarantee(g) for g in plain["guarantees"]),
                    "warnings": tuple(plain["warnings"]),
                    "void": tuple(plain["void"]),
                }
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a privacy statement: {error}") from error


def _median(values: Mapping[str, float], sizes: Mapping[str, int]) -> float:
    """The upper median over clients."""
    left = sum(sizes.get(name, 1) for name in values) // 2
    for name in sorted(values, key=lambda name: values[name]):
        left -= sizes.get(name, 1)
        if left < 0:
            return values[name]
    return max(values.values())


def _guarantee(plain: Mapping[str, Any]) -> Guarantee:
    """The inverse of ``_jsonable`` for one adversary; files of earlier versions have no notes."""
    values = dict(plain)
    for name, value in values.items():
        if name.startswith(("claimed", "proven", "assumed", "measured")):
            values[name] = _number(value)
        elif name in ("bounds", "clients"):
            values[name] = {key: _number(item) for key, item in value.items()}
    values["threat"] = Threat(values["threat"])
    values["assumptions"] = tuple(values["assumptions"])
    values["notes"] = tuple(values.get("notes", ()))
    found = values.get("canaries")
    if found is not None:
        values["canaries"] = CanaryAudit(**{key: _number(item) for key, item in found.items()})
    return Guarantee(**values)


def _number(value: Any) -> Any:
    if value == _INFINITY:
        return math.inf
    return value


def _jsonable(value: Any) -> Any:
    """``value`` of a field as JSON has it; ``_number`` and ``_guarantee`` are the way back."""
    if isinstance(value, Guarantee | CanaryAudit):
        return {f.name: _jsonable(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return _INFINITY
    return value
