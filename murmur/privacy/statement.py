"""A run's privacy statement: the claimed and the proven ε of every adversary.

An algorithm describes, for each adversary, what that adversary sees of every client
(``Exposure``: events); the statement derives ε from the events and never takes it as given.

Its text (``render``) is a function of the value, for people who rely on a figure without having
read how it comes about: who is protected from whom, what the paper claims beside what is proven,
what an ε means in odds, and, before all else, why no figure here may be relied on, where that is
so.
"""

import math
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from murmur.common import counted, printable, three_digits
from murmur.privacy import accounting
from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.audit import CanaryAudit
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
    from murmur.privacy.accounting import Spend

MORE_FOUND = "an attack found more than is stated against {}"
MOST_NAMED = 1000  # clients that a statement names one by one
_INFINITY = "infinity"
_MAX_LINES = 25  # of a statement as text
_WIDTH = 100
UNITS = {
    Unit.CLIENT: "everything that one client holds",
    Unit.RECORD: "one record of one client",
}
THREATS = {
    Threat.LOCAL: "a server that reads every message",
    Threat.SHUFFLE: "a server that cannot tell who sent what",
    Threat.SECURE_AGGREGATION: "a server that sees only sums",
    Threat.CENTRAL: "whoever sees the published models",
    Threat.OUTSIDER: "whoever watches the network",
}
NEIGHBOURS = {
    Adjacency.REPLACE_ONE: "exchanged for anything else",
    Adjacency.ADD_REMOVE: "added or removed",
    Adjacency.REPLACE_SPECIAL: "exchanged for one that contributes nothing",
}
# What neighbours differ in. Two units are two steps apart where each is compared with none only.
_FACTS = {
    Adjacency.REPLACE_ONE: "any fact about the unit",
    Adjacency.ADD_REMOVE: "whether the unit is there at all",
    Adjacency.REPLACE_SPECIAL: "whether the unit contributes anything",
}
_GUESSES = {
    Adjacency.REPLACE_ONE: "about a {}",
    Adjacency.ADD_REMOVE: "whether a {} is there at all",
    Adjacency.REPLACE_SPECIAL: "whether a {} contributes anything",
}


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


def _grouped(exposure: Exposure) -> Exposure:
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
    def stated_per_round(self) -> float:
        """The same of one participation."""
        if self.assumed_per_round is None:
            return self.proven_per_round
        return self.assumed_per_round

    @property
    def attack_beats(self) -> bool:
        """Whether an attack measured more than is stated of a round."""
        return self.measured is not None and self.measured > self.stated_per_round

    @property
    def canaries_beat(self) -> bool:
        """Whether the run's canaries measured more than is stated."""
        return self.canaries is not None and self.canaries.least > self.stated

    @property
    def number_of_clients(self) -> int:
        """How many clients ``clients`` stands for."""
        return sum(self.sizes.get(name, 1) for name in self.clients)

    @classmethod
    def underived(cls, exposure: Exposure) -> "Guarantee":
        """Nothing: every ε that would be derived is infinite."""
        exposure = _grouped(exposure)
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
        if len(exposure.clients) > MOST_NAMED:
            exposure = _grouped(exposure)
        threat = Threat(exposure.threat)

        def proven(event: Event) -> "Spend":
            return accounting.epsilon(event, delta, Threat.LOCAL, adjacency, unit=unit)

        def assumed(event: Event) -> "Spend":
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
    """What clients released to one adversary, JSON-safe: of each event how many, and in words."""
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


@dataclass(frozen=True)
class Statement:
    """The privacy statement of a run.

    ``claim``: what the paper's theorem says, in words. ``difference``: one sentence on why
    proven differs from claimed. ``void``: reasons for which no figure here may be relied on.
    ``split``: what lies where nothing protects it though its owners are protected, if anything.
    ``underived``: why no ε is derived, where the accountant failed: every ε is infinite then, and
    ``charged`` has what was charged, as ``released`` says.
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
    underived: str = ""
    charged: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(
        cls,
        algorithm: str,
        unit: Unit,
        adjacency: Adjacency,
        delta: float,
        exposures: Sequence[Exposure],
        **others: Any,
    ) -> "Statement":
        """Derive every ε from the events in ``exposures``, one guarantee each.

        ``others``: fields with a default. Raises ValueError without exposures, or for a ``delta``
        not in [0, 1).
        """
        if not exposures:
            raise ValueError("exposures=[]: needs at least one adversary")
        guarantees = tuple(Guarantee.of(e, delta, unit, adjacency) for e in exposures)
        return cls(algorithm, unit, adjacency, delta, guarantees, **others)

    @classmethod
    def without_epsilon(
        cls,
        error: Exception,
        algorithm: str,
        unit: Unit,
        adjacency: Adjacency,
        delta: float,
        exposures: Sequence[Exposure],
        **others: Any,
    ) -> "Statement":
        """The same after ``of`` has raised ``error``: what was charged, and that no ε is derived.

        For clients that have answered: whatever the accountant makes of it, they are told.
        """
        return cls(
            algorithm,
            unit,
            adjacency,
            delta,
            tuple(map(Guarantee.underived, exposures)),
            underived=printable(f"the accountant failed ({type(error).__name__}: {error})"),
            charged=tuple(charge for exposure in exposures for charge in released(exposure)),
            **others,
        )

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why no figure here may be relied on: what makes it ``void``, and what beats a figure."""
        beaten = [g.adversary for g in self.guarantees if g.attack_beats or g.canaries_beat]
        failed = [f"no ε is derived: {self.underived}"] if self.underived else []
        return (*self.void, *failed, *map(MORE_FOUND.format, beaten))

    @property
    def is_private(self) -> bool:
        """Whether ε is proven against some adversary, and nothing makes the figures void."""
        return not self.doubts and any(math.isfinite(g.proven_total) for g in self.guarantees)

    @property
    def protects_model(self) -> bool:
        """Whether a finite ε, proven or with its assumptions, covers whoever sees the model.

        Each adversary sees at least the models, so that a figure against any of them is enough.
        """
        return not self.doubts and any(math.isfinite(g.stated) for g in self.guarantees)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-safe mapping; an infinite ε is the string "infinity"."""
        return {f.name: _jsonable(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Statement":
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
                    "charged": tuple(plain.get("charged", ())),
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


def render(statement: Statement) -> str:
    """The whole statement, 25 lines of 100 characters at most; what matters most comes first."""
    lines = [f"Privacy statement: {statement.algorithm}"]
    lines += [f"VOID, rely on none of these figures: {reason}" for reason in statement.doubts]
    is_protected = any(math.isfinite(g.stated) for g in statement.guarantees)
    if statement.underived:
        lines += map(_charge, statement.charged)
    elif not is_protected:
        lines.append("NOT PRIVATE: nothing protects what the clients released.")
    elif not any(math.isfinite(g.proven_total) for g in statement.guarantees):
        lines.append("NOT PROVEN: every finite ε here rests on an assumption.")
    subject = UNITS[statement.unit]
    neighbours = NEIGHBOURS[statement.adjacency]
    if is_protected:
        lines.append(f"Protected: {subject}, {neighbours}; δ = {statement.delta:g}.")
    if statement.split:
        lines.append(f"Not protected: {statement.split}.")
    for guarantee in statement.guarantees:
        if statement.underived:
            lines.append(f"Against {guarantee.adversary}: no ε is derived")
        else:
            lines += _describe(guarantee, statement.adjacency)
    if statement.claim:
        lines.append(f"What the paper claims: {statement.claim}")
    if statement.difference and is_protected:
        lines.append(f"Why proven differs from claimed: {statement.difference}")
    lines += [f"Warning: {warning}" for warning in statement.warnings]
    notes = dict.fromkeys(note for guarantee in statement.guarantees for note in guarantee.notes)
    lines += [f"Note: {note}" for note in notes]
    return "\n".join(_fit(lines))


def _charge(charge: Mapping[str, Any]) -> str:
    """One of ``Statement.charged``, in words."""
    clients = counted(charge["clients"], "client")
    return f"Charged to {clients}, as seen by {charge['adversary']}: {charge['release']}"


def promise(unit: Unit, adjacency: Adjacency, threat: Threat, delta: float) -> str:
    """What is hidden of whom, from whom, at which δ: only ε of one promise can be compared."""
    hidden = f"{UNITS[Unit(unit)].capitalize()}, {NEIGHBOURS[Adjacency(adjacency)]}"
    return f"{hidden}, against {THREATS[Threat(threat)]}, δ = {delta:g}"


def card(statement: Statement) -> dict[str, list[str]]:
    """What a run ends with on its privacy: label -> texts that say the same, the longest first.

    One ε is the promise: that against the adversary that the budget is meant for. What it rests on
    and what is left without that have lines of their own; all else is in the statement.
    """
    told: dict[str, list[str]] = {}
    first = statement.guarantees[0]
    if statement.doubts:
        told["Promise"] = [f"VOID, rely on no figure of this run: {'; '.join(statement.doubts)}"]
    elif math.isinf(first.stated):
        told["Protected"] = ["nothing"]
        told["Promise"] = [
            f"none against {first.adversary} (ε is infinite): nothing protects what was sent"
        ]
    else:
        subject = UNITS[statement.unit]
        if statement.split:
            subject += f"; not {statement.split}"
        told["Protected"] = [subject]
        told |= _promise(first, statement)
    if first.canaries is not None:
        least = _shown(first.canaries.at_least, up=False)
        short = f"ε at least {least}, by {first.canaries.count} canary clients"
        told["Measured"] = [f"ε {canary_finding(first.canaries)}", short]
    elif first.measured is not None:
        told["Measured"] = [f"ε at least {_shown(first.measured, up=False)} a round, by attack"]
    return told


def _promise(first: Guarantee, statement: Statement) -> dict[str, list[str]]:
    """The lines on a finite ε: what it means, what it rests on, and what the paper says instead."""
    figure = f"ε = {_shown(first.stated)} against {first.adversary}"
    guess = f"{figure}: can turn a {_guess(first.stated, statement)}"
    told = {"Promise": [guess, figure]}
    if statement.delta:
        chance = np.format_float_positional(statement.delta, trim="-")
        told["Promise"] = [
            f"{guess}, but for a chance of {chance}",
            f"{figure}, δ = {chance}",
            figure,
        ]
    conditions = [_brief(clause) for clause in first.assumptions]
    if first.threat is Threat.CENTRAL:
        conditions.insert(0, "the server adds the noise, and keeps updates to itself")
    if conditions:
        told["Holds if"] = ["; ".join(conditions)]
        if len(conditions) > 1:
            more = counted(len(conditions) - 1, "more condition")
            told["Holds if"].append(f"{conditions[0]}; and {more}")
        left = max(guarantee.proven_total for guarantee in statement.guarantees)
        told["If it fails"] = _left(left)
    if first.claimed_total is not None and _shown(first.claimed_total) != _shown(first.stated):
        claimed = f"ε = {_shown(first.claimed_total)} by the paper"
        told["Claimed"] = [f"{claimed}, against {first.adversary}", ""]
    return told


def _guess(epsilon: float, statement: Statement) -> str:
    """What ε lets an adversary make of even odds on what neighbours differ in."""
    about = _GUESSES[statement.adjacency].format(statement.unit)
    certainty = _certainty(epsilon)
    if certainty is None:
        return f"50:50 guess {about} into practical certainty"
    return f"50:50 guess {about} into {certainty} at most"


def _left(epsilon: float) -> list[str]:
    """What is left where the conditions of a promise fail: the ε that rests on none."""
    if math.isinf(epsilon):
        return [f"nothing protects against {THREATS[Threat.LOCAL]}"]
    figure = f"ε = {_shown(epsilon)}"
    return [f"{figure} against {THREATS[Threat.LOCAL]}", f"{figure} where messages are read"]


def _brief(clause: str) -> str:
    """A clause of a statement for a card: without what stands in brackets; "it" is the server."""
    said = re.sub(r" \([^()]*\)", "", clause)
    return re.sub(r"^it (?=follows|forgot)", "the server ", said)


def against(adversary: str, assumptions: Sequence[str]) -> str:
    """The adversary, and all that its figure rests on."""
    if not assumptions:
        return adversary
    return f"{adversary}, if {', and if '.join(assumptions)}"


def _describe(g: Guarantee, adjacency: Adjacency) -> list[str]:
    """The lines on one adversary, where neighbours are by ``adjacency``."""
    figure = f"ε = {_shown(g.stated)} in total, {_shown(g.stated_per_round)} a round; {g.method}"
    is_finite = math.isfinite(g.stated)
    whom = against(g.adversary, g.assumptions if is_finite else ())
    lines = [f"Against {whom}: {figure}"]
    if g.assumptions and is_finite and g.threat != Threat.SECURE_AGGREGATION:
        lines.append(f"  without that: ε = {_shown(g.proven_total)}")
    if not g.assumptions and g.number_of_clients > 1 and math.isfinite(g.proven_total):
        lines.append(
            f"  of {g.number_of_clients} clients the most exposed; median "
            f"{_shown(g.proven_median)}, least {_shown(g.proven_least)}"
        )
    if g.claimed_per_round is not None or g.claimed_total is not None:
        claimed = f"{_shown(g.claimed_per_round)} per round, {_shown(g.claimed_total)} in total"
        lines.append(f"  claimed ε:  {claimed}")
    if g.measured is not None:
        found = f"  measured ε: at least {_shown(g.measured, up=False)} per round, by attack"
        if g.attack_beats:
            found += "; this is MORE THAN STATED: do not rely on this statement"
        lines.append(found)
    if g.canaries is not None:
        found = f"  canaries:   {canary_finding(g.canaries)}"
        if g.canaries_beat:
            found += "; this is MORE THAN STATED: do not rely on this statement"
        lines.append(found)
    if is_finite:
        lines.append(f"  in words: {odds(g.stated, adjacency)}")
    return lines


def canary_finding(found: CanaryAudit) -> str:
    """What the canary clients of a run measured: the bound, and the estimate if there is one."""
    least = _shown(found.at_least, up=False)
    proven = f"at least {least} over the run, by {found.count} canary clients"
    if found.estimate is None:
        return proven
    low = _shown(found.low, up=False)
    about = f"about {_shown(found.estimate)} ({low} to {_shown(found.high)})"
    return f"{proven}; {about} if what is seen of them is normal"


def odds(epsilon: float, adjacency: Adjacency) -> str:
    """What ε lets an adversary learn of what neighbours differ in, as a probability.

    But for an event of probability δ.
    """
    certainty = _certainty(epsilon)
    sure = f"at most {certainty} sure"
    if certainty is None:
        sure = "practically certain"
    return f"from even odds on {_FACTS[adjacency]}, the adversary may become {sure}"


def _certainty(epsilon: float) -> str | None:
    """How sure ε lets an adversary become from even odds, in percent; None: practically certain."""
    certainty = 1 / (1 + math.exp(-epsilon))
    if certainty > 0.9995:
        return None
    return f"{math.ceil(1000 * certainty) / 10:.1f}%"


def _shown(value: float | None, up: bool = True) -> str:
    if value is None:
        return "not stated"
    if math.isinf(value):
        return "infinite"
    return three_digits(value, up)


def _fit(lines: Sequence[str]) -> list[str]:
    """``lines`` wrapped, and cut at the limit with a word about what is missing."""
    wrapped = [
        part for line in lines for part in textwrap.wrap(line, _WIDTH, subsequent_indent="    ")
    ]
    if len(wrapped) <= _MAX_LINES:
        return wrapped
    missing = len(wrapped) - _MAX_LINES + 1
    return [*wrapped[: _MAX_LINES - 1], f"({missing} more lines: see the statement's JSON.)"]
