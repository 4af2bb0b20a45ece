"""What a run may say about privacy: claimed beside proven, for people and for programs.

An algorithm describes, for each adversary, what that adversary sees of every client
(``Exposure``: events); the statement derives ε from the events and never takes it as given.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from privacy.accounting import Adjacency, Threat, Unit, epsilon
from privacy.events import ComposedEvent, Event, RepeatedEvent

_MAX_LINES = 25
_WIDTH = 100


@dataclass(frozen=True)
class Exposure:
    """What one adversary sees of every client, and what the paper claims about it.

    ``per_round``: the event of one participation. ``clients``: by name, all that the client
    released in the run; phases (training, evaluation) compose with ``ComposedEvent``.
    ``sizes``: how many clients a name stands for, where it is not 1. ``claimed_*``: ε of the
    paper's own theorem, None where it makes no claim. ``measured``: a lower bound on ε found
    by an audit.
    """

    threat: Threat
    adversary: str
    per_round: Event
    clients: Mapping[str, Event]
    claimed_per_round: float | None = None
    claimed_total: float | None = None
    measured: float | None = None
    assumptions: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)


def by_participations(
    per_round: Event, participations: Mapping[str, int], *phases: Event
) -> dict[str, Event]:
    """``Exposure.clients`` for clients that released ``per_round`` the given number of times.

    ``phases``: what every one of them released besides. A client with 0 participations
    released ``phases`` only.
    """
    repeated = {0: phases}
    for count in participations.values():
        if count and count not in repeated:
            repeated[count] = (RepeatedEvent(per_round, count), *phases)
    return {client: ComposedEvent(repeated[n]) for client, n in participations.items()}


@dataclass(frozen=True)
class Guarantee:
    """ε against one adversary: claimed, proven, measured.

    Proven totals are over clients (disjoint data: the maximum is what the run guarantees);
    ``clients`` holds each one's. ``method`` and ``bounds`` belong to ``most_exposed``.
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
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statement:
    """The privacy statement of a run.

    ``claim``: what the paper's theorem says, in words. ``difference``: one sentence on why
    proven differs from claimed. ``void``: reasons for which no figure here may be relied on.
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
    ) -> Statement:
        """Derive every ε from the events in ``exposures``; at least one is needed."""
        if not exposures:
            raise ValueError("exposures=[]: needs at least one adversary")
        adjacency = Adjacency(adjacency)
        return cls(
            algorithm,
            Unit(unit),
            adjacency,
            delta,
            tuple(_guarantee(exposure, delta, adjacency) for exposure in exposures),
            claim,
            difference,
            tuple(warnings),
            tuple(void),
        )

    @property
    def is_private(self) -> bool:
        """Whether some adversary meets a finite proven ε, and nothing makes the run void."""
        return not self.void and any(math.isfinite(g.proven_total) for g in self.guarantees)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-safe mapping; an infinite ε is the string "infinity"."""
        return {f.name: _jsonable(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Statement:
        """The inverse of ``to_dict``; raises ValueError for anything else."""
        values = {key: _revive(value) for key, value in plain.items()}
        try:
            values["guarantees"] = tuple(
                Guarantee(**{**g, "threat": Threat(g["threat"])}) for g in values["guarantees"]
            )
            values["unit"] = Unit(values["unit"])
            values["adjacency"] = Adjacency(values["adjacency"])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a privacy statement: {error}") from error

    def text(self) -> str:
        """For people, 25 lines at most: who is protected from whom, claimed beside proven."""
        subject = (
            "everything that one client holds"
            if self.unit is Unit.CLIENT
            else "one record of one client"
        )
        neighbours = (
            "exchanged for anything else"
            if self.adjacency is Adjacency.REPLACE_ONE
            else "added or removed"
        )
        lines = [f"Privacy statement: {self.algorithm}"]
        lines += [f"VOID: {reason}" for reason in self.void]
        if not any(math.isfinite(g.proven_total) for g in self.guarantees):
            lines.append("NOT PRIVATE: what clients released is not protected.")
        lines.append(f"Protects {subject}, {neighbours}; δ = {self.delta:g}.")
        tail = [f"The paper claims: {self.claim}"] if self.claim else []
        tail += [f"Why they differ: {self.difference}"] if self.difference else []
        tail += [f"Warning: {warning}" for warning in self.warnings]
        for guarantee in self.guarantees:
            lines += _describe(guarantee)
        return "\n".join(_fit(lines + tail))


def _guarantee(exposure: Exposure, delta: float, adjacency: Adjacency) -> Guarantee:
    if not exposure.clients:
        raise ValueError("clients={}: an exposure needs at least one client")
    threat = Threat(exposure.threat)
    spends = {
        event: epsilon(event, delta, threat, adjacency) for event in set(exposure.clients.values())
    }
    clients = {name: spends[event].epsilon for name, event in exposure.clients.items()}
    sizes = {name: exposure.sizes.get(name, 1) for name in clients}
    most_exposed = max(clients, key=lambda name: clients[name])
    worst = spends[exposure.clients[most_exposed]]
    return Guarantee(
        threat=threat,
        adversary=exposure.adversary,
        claimed_per_round=exposure.claimed_per_round,
        claimed_total=exposure.claimed_total,
        proven_per_round=epsilon(exposure.per_round, delta, threat, adjacency).epsilon,
        proven_total=worst.epsilon,
        proven_median=_median(clients, sizes),
        proven_least=min(clients.values()),
        most_exposed=most_exposed,
        method=worst.method,
        bounds=worst.bounds,
        clients=clients,
        sizes={name: size for name, size in sizes.items() if size != 1},
        measured=exposure.measured,
        assumptions=tuple(exposure.assumptions),
    )


def _median(values: Mapping[str, float], sizes: Mapping[str, int]) -> float:
    """The upper median over clients."""
    half = sum(sizes.values()) // 2
    for name in sorted(values, key=lambda name: values[name]):
        half -= sizes[name]
        if half < 0:
            return values[name]
    return max(values.values())


def _describe(g: Guarantee) -> list[str]:
    count = sum(g.sizes.get(name, 1) for name in g.clients)
    lines = [f"Against {g.adversary} ({g.threat.replace('_', ' ')} model):"]
    lines.append(f"  claimed ε: {_pair(g.claimed_per_round, g.claimed_total)}")
    proven = f"  proven ε:  {_pair(g.proven_per_round, g.proven_total)}"
    if count > 1:
        proven += f" for the most exposed of {count} clients"
        proven += f" (median {_number(g.proven_median)}, least {_number(g.proven_least)})"
    lines.append(f"{proven}; {g.method}")
    if g.measured is not None:
        lines.append(f"  measured ε: at least {_number(g.measured)}, by attack")
    return lines + [f"  assumes: {assumption}" for assumption in g.assumptions]


def _pair(per_round: float | None, total: float | None) -> str:
    if per_round is None and total is None:
        return "none"
    return f"{_number(per_round)} per round, {_number(total)} in total"


def _number(value: float | None) -> str:
    if value is None:
        return "not stated"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}" if math.isfinite(value) else "∞"


def _fit(lines: Sequence[str]) -> list[str]:
    """``lines`` wrapped, and cut at the limit with a word about what is missing."""
    wrapped = [
        part
        for line in lines
        for part in textwrap.wrap(line, _WIDTH, subsequent_indent="    ") or [""]
    ]
    if len(wrapped) <= _MAX_LINES:
        return wrapped
    missing = len(wrapped) - _MAX_LINES + 1
    return [*wrapped[: _MAX_LINES - 1], f"({missing} more lines; see the full statement.)"]


def _jsonable(value: Any) -> Any:
    if isinstance(value, Guarantee):
        return {f.name: _jsonable(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "infinity"
    return value


def _revive(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _revive(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_revive(item) for item in value)
    return math.inf if value == "infinity" else value
