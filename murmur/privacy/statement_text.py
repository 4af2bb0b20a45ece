"""The privacy statement in plain language: text, as a function of the value.

For people who rely on a figure without having read how it comes about: who is protected from whom,
what the paper claims beside what is proven, what an ε means in odds, and, before all else, why no
figure here may be relied on, where that is so.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence

from murmur.privacy.accounting import Adjacency, Threat, Unit
from murmur.privacy.audit import CanaryAudit
from murmur.privacy.statement import Guarantee, Statement

_MAX_LINES = 25
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


def render(statement: Statement) -> str:
    """The whole statement, 25 lines of 100 characters at most; what matters most comes first."""
    lines = [f"Privacy statement: {statement.algorithm}"]
    lines += [f"VOID, rely on none of these figures: {reason}" for reason in statement.void]
    if not any(math.isfinite(g.stated) for g in statement.guarantees):
        lines.append("NOT PRIVATE: nothing protects what the clients released.")
    elif not any(math.isfinite(g.proven_total) for g in statement.guarantees):
        lines.append("NOT PROVEN: every finite ε here rests on an assumption.")
    subject = UNITS[statement.unit]
    neighbours = NEIGHBOURS[statement.adjacency]
    lines.append(f"Protected: {subject}, {neighbours}; δ = {statement.delta:g}.")
    if statement.split:
        lines.append(f"Not protected: {statement.split}.")
    for guarantee in statement.guarantees:
        lines += _describe(guarantee)
    if statement.claim:
        lines.append(f"What the paper claims: {statement.claim}")
    if statement.difference:
        lines.append(f"Why proven differs from claimed: {statement.difference}")
    lines += [f"Warning: {warning}" for warning in statement.warnings]
    notes = dict.fromkeys(note for guarantee in statement.guarantees for note in guarantee.notes)
    lines += [f"Note: {note}" for note in notes]
    return "\n".join(_fit(lines))


def promise(unit: Unit, threat: Threat, delta: float) -> str:
    """Who is protected from whom, at which δ: only ε of one promise can be compared."""
    subject = UNITS[Unit(unit)]
    return f"{subject.capitalize()}, against {THREATS[Threat(threat)]}, δ = {delta:g}"


def card(statement: Statement) -> dict[str, str]:
    """What a run ends with: five lines on its privacy, label -> text, in their order."""
    kept_from = [g.adversary for g in statement.guarantees if math.isfinite(g.stated)]
    losses = []
    rests_on: list[str] = []
    claims = []
    for guarantee in statement.guarantees:
        losses.append(_loss(guarantee))
        rests_on += map(_brief, [*guarantee.assumptions, *guarantee.notes])
        if guarantee.claimed_total is not None:
            claimed = _number(guarantee.claimed_total)
            claims.append(f"ε = {claimed} against {guarantee.adversary}")
    if statement.claim:
        claims.append(statement.claim)
    subject = UNITS[statement.unit]
    if statement.split:
        subject += f"; not {statement.split}"
    each = "each " if len(losses) > 1 else ""
    chance = f"{each}but for a chance of δ = {statement.delta:g}"
    return {
        "what is protected": subject,
        "from whom": kept_from[0] if kept_from else "nobody: nothing protects what was sent",
        "privacy loss ε, chance δ": "; ".join([*losses, chance]),
        "under which assumption": "; ".join(dict.fromkeys(rests_on)) or "none",
        "what the paper claims": "; ".join(claims) or "nothing",
    }


def _brief(clause: str) -> str:
    """A clause of a statement for a card: without what stands in brackets; "it" is the server."""
    said = re.sub(r" \([^()]*\)", "", clause)
    return re.sub(r"^it (?=follows|forgot)", "the server ", said)


def _loss(g: Guarantee) -> str:
    """ε against one adversary, with the first of the conditions that it rests on."""
    whom = against(g.adversary, [_brief(clause) for clause in g.assumptions[:1]])
    if math.isinf(g.stated):
        return f"against {whom}: no protection (ε is infinite)"
    return f"against {whom}: ε = {_number(g.stated)}"


def against(adversary: str, assumptions: Sequence[str]) -> str:
    """The adversary, and all that its figure rests on."""
    if not assumptions:
        return adversary
    return f"{adversary}, if {', and if '.join(assumptions)}"


def _describe(g: Guarantee) -> list[str]:
    """The lines on one adversary."""
    per_round = g.assumed_per_round if g.assumptions else g.proven_per_round
    figure = f"ε = {_number(g.stated)} in total, {_number(per_round)} a round; {g.method}"
    lines = [f"Against {against(g.adversary, g.assumptions)}: {figure}"]
    if g.assumptions and g.threat != Threat.SECURE_AGGREGATION:
        lines.append(f"  without that: ε = {_number(g.proven_total)}")
    if not g.assumptions and g.number_of_clients > 1 and math.isfinite(g.proven_total):
        lines.append(
            f"  of {g.number_of_clients} clients the most exposed; median "
            f"{_number(g.proven_median)}, least {_number(g.proven_least)}"
        )
    if g.claimed_per_round is not None or g.claimed_total is not None:
        claimed = f"{_number(g.claimed_per_round)} per round, {_number(g.claimed_total)} in total"
        lines.append(f"  claimed ε:  {claimed}")
    if g.measured is not None:
        found = f"  measured ε: at least {_number(g.measured)} per round, by attack"
        if g.measured > g.proven_per_round:
            found += "; this is MORE THAN PROVEN: do not rely on this statement"
        lines.append(found)
    if g.canaries is not None:
        found = f"  canaries:   {canary_finding(g.canaries)}"
        if g.canaries.at_least > g.stated:
            found += "; this is MORE THAN STATED: do not rely on this statement"
        lines.append(found)
    if math.isfinite(g.stated):
        lines.append(f"  in words: {odds(g.stated)}")
    return lines


def canary_finding(found: CanaryAudit) -> str:
    """What the canary clients of a run measured: the bound, and the estimate if there is one."""
    proven = f"at least {_number(found.at_least)} over the run, by {found.count} canary clients"
    if found.estimate is None:
        return proven
    low, middle, high = map(_number, (found.low, found.estimate, found.high))
    return f"{proven}; about {middle} ({low} to {high}) if what is seen of them is normal"


def odds(epsilon: float) -> str:
    """What ε lets an adversary learn, as a probability (but for an event of probability δ)."""
    certainty = 1 / (1 + math.exp(-epsilon))
    sure = f"at most {certainty:.1%} sure"
    if certainty > 0.9995:
        sure = "practically certain"
    return f"from even odds on any fact about the unit, the adversary may become {sure}"


def _number(value: float | None) -> str:
    if value is None:
        return "not stated"
    if math.isinf(value):
        return "infinite"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _fit(lines: Sequence[str]) -> list[str]:
    """``lines`` wrapped, and cut at the limit with a word about what is missing."""
    wrapped = [
        part for line in lines for part in textwrap.wrap(line, _WIDTH, subsequent_indent="    ")
    ]
    if len(wrapped) <= _MAX_LINES:
        return wrapped
    missing = len(wrapped) - _MAX_LINES + 1
    return [*wrapped[: _MAX_LINES - 1], f"({missing} more lines: see the statement's JSON.)"]
