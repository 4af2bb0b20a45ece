"""A privacy statement in words, for people who rely on a figure without having derived it.

The text is a function of the statement: who is protected from whom, what the paper claims beside
what is proven, what an ε means in odds, and, first, why no figure may be relied on, where that is
so. ``render`` gives all of it, ``card`` the lines that a run ends with.
"""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from murmur.format import format_number, pluralize
from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.audit import CanaryAudit
from murmur.privacy.guarantee import Guarantee
from murmur.privacy.statement import Statement

_MAX_LINES = 25  # of a statement as text
_MAX_LINE_CHARACTERS = 100
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
    clients = pluralize(charge["clients"], "client")
    return f"Charged to {clients}, as seen by {charge['adversary']}: {charge['release']}"


def promise(unit: Unit, adjacency: Adjacency, threat: Threat, delta: float) -> str:
    """Unit, neighbours, adversary and δ in words; only ε of one promise can be compared."""
    hidden = f"{UNITS[Unit(unit)].capitalize()}, {NEIGHBOURS[Adjacency(adjacency)]}"
    return f"{hidden}, against {THREATS[Threat(threat)]}, δ = {delta:g}"


def card(statement: Statement) -> dict[str, list[str]]:
    """Lines on privacy that end a run: label -> texts of the same meaning, the longest first.

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
        least = _format_epsilon(first.canaries.at_least, up=False)
        short = f"ε at least {least}, by {first.canaries.count} canary clients"
        told["Measured"] = [f"ε {canary_finding(first.canaries)}", short]
    elif first.measured is not None:
        told["Measured"] = [
            f"ε at least {_format_epsilon(first.measured, up=False)} a round, by attack"
        ]
    return told


def _promise(first: Guarantee, statement: Statement) -> dict[str, list[str]]:
    """The lines on a finite ε: what it means, what it rests on, and what the paper says instead."""
    figure = f"ε = {_format_epsilon(first.stated)} against {first.adversary}"
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
            more = pluralize(len(conditions) - 1, "more condition")
            told["Holds if"].append(f"{conditions[0]}; and {more}")
        left = max(guarantee.proven_total for guarantee in statement.guarantees)
        told["If it fails"] = _left(left)
    if first.claimed_total is not None and _format_epsilon(first.claimed_total) != _format_epsilon(
        first.stated
    ):
        claimed = f"ε = {_format_epsilon(first.claimed_total)} by the paper"
        told["Claimed"] = [f"{claimed}, against {first.adversary}", ""]
    return told


def _guess(epsilon: float, statement: Statement) -> str:
    """The best guess that ε lets an adversary make of even odds, in words."""
    about = _GUESSES[statement.adjacency].format(statement.unit)
    certainty = _certainty(epsilon)
    if certainty is None:
        return f"50:50 guess {about} into practical certainty"
    return f"50:50 guess {about} into {certainty} at most"


def _left(epsilon: float) -> list[str]:
    """The ε that is left where the conditions of a promise fail, in words."""
    if math.isinf(epsilon):
        return [f"nothing protects against {THREATS[Threat.LOCAL]}"]
    figure = f"ε = {_format_epsilon(epsilon)}"
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
    total = _format_epsilon(g.stated)
    figure = f"ε = {total} in total, {_format_epsilon(g.stated_per_round)} a round; {g.method}"
    is_finite = math.isfinite(g.stated)
    whom = against(g.adversary, g.assumptions if is_finite else ())
    lines = [f"Against {whom}: {figure}"]
    if g.assumptions and is_finite and g.threat != Threat.SECURE_AGGREGATION:
        lines.append(f"  without that: ε = {_format_epsilon(g.proven_total)}")
    if not g.assumptions and g.number_of_clients > 1 and math.isfinite(g.proven_total):
        lines.append(
            f"  of {g.number_of_clients} clients the most exposed; median "
            f"{_format_epsilon(g.proven_median)}, least {_format_epsilon(g.proven_least)}"
        )
    if g.claimed_per_round is not None or g.claimed_total is not None:
        claimed = f"{_format_epsilon(g.claimed_per_round)} per round"
        lines.append(f"  claimed ε:  {claimed}, {_format_epsilon(g.claimed_total)} in total")
    if g.measured is not None:
        found = (
            f"  measured ε: at least {_format_epsilon(g.measured, up=False)} per round, by attack"
        )
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
    """Finding of a run's canary clients: the bound, and the estimate if there is one."""
    least = _format_epsilon(found.at_least, up=False)
    proven = f"at least {least} over the run, by {found.count} canary clients"
    if found.estimate is None:
        return proven
    low = _format_epsilon(found.low, up=False)
    about = f"about {_format_epsilon(found.estimate)} ({low} to {_format_epsilon(found.high)})"
    return f"{proven}; {about} if what is seen of them is normal"


def odds(epsilon: float, adjacency: Adjacency) -> str:
    """The probability to which ε lets an adversary guess, in words.

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


def _format_epsilon(value: float | None, up: bool = True) -> str:
    if value is None:
        return "not stated"
    if math.isinf(value):
        return "infinite"
    return format_number(value, up)


def _fit(lines: Sequence[str]) -> list[str]:
    """``lines`` wrapped, and cut at the limit with a word about what is missing."""
    wrapped = [
        part
        for line in lines
        for part in textwrap.wrap(line, _MAX_LINE_CHARACTERS, subsequent_indent="    ")
    ]
    if len(wrapped) <= _MAX_LINES:
        return wrapped
    missing = len(wrapped) - _MAX_LINES + 1
    return [*wrapped[: _MAX_LINES - 1], f"({missing} more lines: see the statement's JSON.)"]
