"""Figures of one setting over its repetitions: mean, least and most."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fl_app.report.reading import Run, number
from fl_app.report.settings import Setting
from murmur.privacy.one_run import CanaryAudit
from murmur.privacy.statement import Guarantee

# What a row says beside scores.
_BOOKKEEPING = {
    "round",
    "epsilon_proven",
    "epsilon_assumed",
    "answered",
    "failed",
    "evaluation_failed",
} | {
    "bytes_down",
    "bytes_up",
    "seconds",
}
MOST_ROUNDS = 60


@dataclass(frozen=True)
class Spread:
    """Mean, least and most over ``count`` repetitions."""

    mean: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """The spread of the values that are there; None without any."""
        found = [value for value in values if value is not None]
        if not found:
            return None
        mean = math.inf if math.inf in found else math.fsum(found) / len(found)
        return cls(mean, min(found), max(found), len(found))


def score_names(runs: Iterable[Run]) -> list[str]:
    """All scores that rows carry, accuracy first."""
    names = {
        name: None
        for run in runs
        for row in run.rows
        for name, value in row.items()
        if name not in _BOOKKEEPING and number(value) is not None
    }
    return sorted(names, key=lambda name: (name != "accuracy", name))


def over_rounds(setting: Setting, score: str) -> dict[int, Spread]:
    """Round -> spread of ``score``, over the repetitions that have it."""
    return _by_round(setting, lambda row: number(row.get(score)))


def bytes_so_far(setting: Setting) -> dict[int, float]:
    """Round -> bytes that all clients together have sent until then, mean over repetitions."""
    totals: dict[int, list[float]] = {}
    for run in setting.started:
        total = 0.0
        for row in run.rows:
            total += number(row.get("bytes_up")) or 0.0
            totals.setdefault(row["round"], []).append(total)
    return {number_: math.fsum(v) / len(v) for number_, v in sorted(totals.items())}


def final(run: Run, score: str) -> float | None:
    """Mean over the last five rounds that were scored; of a run that goes on, so far."""
    scored = [number(row.get(score)) for row in run.rows if row["round"] > 0]
    last = [value for value in scored if value is not None][-5:]
    return math.fsum(last) / len(last) if last else None


def last_spread(setting: Setting, score: str) -> Spread | None:
    """``score`` in the last round that has it: where a line ends."""
    curve = over_rounds(setting, score)
    return curve[max(curve)] if curve else None


def final_spread(setting: Setting, score: str) -> Spread | None:
    """``final`` over the repetitions."""
    return Spread.of(final(run, score) for run in setting.started)


def headline(run: Run) -> Guarantee | None:
    """The guarantee that a statement puts first: the algorithm's own adversary."""
    return run.statement.guarantees[0] if run.statement is not None else None


def claimed(setting: Setting) -> float | None:
    """ε that the paper claims for the run; None where it claims nothing."""
    firsts = [g.claimed_total for run in setting.runs if (g := headline(run)) is not None]
    return max((value for value in firsts if value is not None), default=None)


def proven(setting: Setting) -> float | None:
    """The most ε that is proven for any repetition; of an unfinished run, so far."""
    values = [_proven(run) for run in setting.started]
    return max((value for value in values if value is not None), default=None)


def assumed(setting: Setting) -> float | None:
    """The most ε of any repetition under its assumptions; None where it rests on none."""
    firsts = [g.assumed_total for run in setting.runs if (g := headline(run)) is not None]
    return max((value for value in firsts if value is not None), default=None)


def canaries(setting: Setting) -> CanaryAudit | None:
    """What canary clients measured in the repetition in which they found most; None without any."""
    found = [g.canaries for run in setting.runs if (g := headline(run)) is not None and g.canaries]
    return max(found, key=lambda audit: (audit.estimate or 0.0, audit.at_least), default=None)


def spends(setting: Setting) -> dict[float, int]:
    """Proven ε -> number of clients with it, over all repetitions."""
    counts: dict[float, int] = {}
    for run in setting.runs:
        if (first := headline(run)) is not None:
            for name, value in first.clients.items():
                counts[value] = counts.get(value, 0) + first.sizes.get(name, 1)
    return dict(sorted(counts.items()))


def total_bytes(run: Run) -> float:
    """Bytes that the clients have sent."""
    return math.fsum(number(row.get("bytes_up")) or 0.0 for row in run.rows)


def thin(rounds: Iterable[int], most: int = MOST_ROUNDS) -> list[int]:
    """At most about ``most`` of ``rounds``, evenly, with the first and the last."""
    ordered = sorted(rounds)
    step = max(1, math.ceil(len(ordered) / most))
    return [n for i, n in enumerate(ordered) if i % step == 0 or i == len(ordered) - 1]


def _proven(run: Run) -> float | None:
    if (first := headline(run)) is not None:
        return first.proven_total
    return number(run.rows[-1].get("epsilon_proven")) if run.rows else None


def _by_round(
    setting: Setting, value: Callable[[Mapping[str, Any]], float | None]
) -> dict[int, Spread]:
    found: dict[int, list[float | None]] = {}
    for run in setting.started:
        for row in run.rows:
            found.setdefault(row["round"], []).append(value(row))
    spreads = {n: Spread.of(values) for n, values in sorted(found.items())}
    return {n: spread for n, spread in spreads.items() if spread is not None}
