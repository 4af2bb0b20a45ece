"""Runs gathered into settings: jobs that differ in their seed only are one setting, repeated.

What a figure or a table says of a setting is over its repetitions: of scores the mean and its 95 %
interval; of ε the largest, since whoever relies on a setting relies on its worst run.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas

from fl_app.api import (
    LAST_ROUNDS,
    Run,
    format_epsilon,
    interval,
    is_share,
    number,
    short_name,
    spread,
    typed,
    value_of,
    varied_values,
)
from murmur.format import pluralize
from murmur.privacy.audit import CanaryAudit
from murmur.privacy.guarantee import Guarantee
from murmur.privacy.statement_text import promise

# What a row holds beside scores.
_BOOKKEEPING = {"round", "epsilon_proven", "epsilon_assumed", "answered", "failed"}
_BOOKKEEPING |= {"evaluation_failed", "bytes_down", "bytes_up", "seconds", "counted"}
_LONG_NAME = 24  # letters of an algorithm's name that fit beside a line
NOT_STATED = "No privacy statement yet"
_EXPONENT = re.compile(r"\b(?P<digits>\d+(?:\.\d+)?)e(?P<exponent>[+-]?\d+)\b")
RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
_TO_RAISED = str.maketrans("0123456789-", RAISED)
FROM_RAISED = str.maketrans(RAISED, "0123456789-")
AT_CHANCE = "learned nothing"
VOID = "privacy void"


@dataclass(frozen=True)
class Setting:
    """Runs that should be alike but for chance.

    Attributes:
        key: short and unique in its grouping (``s0``); names the setting in the page.
        family: the algorithm.
        values: what sets it apart from the family's other settings: dotted key -> value as typed.
        family_index, variant_index: places among the algorithms, and within the own one; they
            choose colours, dashes and marks.
        runs: its repetitions; those that share a seed count as one.
    """

    key: str
    family: str
    values: Mapping[str, str]
    family_index: int
    variant_index: int
    runs: tuple[Run, ...]

    @property
    def variant(self) -> str:
        """``values`` in words, with spaces that do not break; "" for a family's only setting."""
        names = {key: short_name(key, self.values) for key in self.values}
        shown = (f"{names[key]} = {_shown(key, value)}" for key, value in self.values.items())
        return ", ".join(text.replace(" ", "\u00a0") for text in shown)

    @property
    def label(self) -> str:
        """Family and variant."""
        if self.values:
            return f"{self.family}, {self.variant}"
        return self.family

    @property
    def marks(self) -> tuple[str, ...]:
        """Warnings about its figures: void, or no better than chance."""
        found = [VOID] * self.is_void
        said = [run.at_chance for run in self.runs]
        known = [at_chance for at_chance in said if at_chance is not None]
        if any(known):
            found.append(AT_CHANCE)
            if not all(known):
                found[-1] += f" in {sum(known)} of {pluralize(len(known), 'run')}"
        return tuple(found)

    @property
    def marked_label(self) -> str:
        """``label`` with its ``marks``; the one name that figures and tables have for it."""
        if self.marks:
            return f"{self.label} ({', '.join(self.marks)})"
        return self.label

    @property
    def chance(self) -> float | None:
        """The accuracy of always naming the most frequent class; None where no run knows it."""
        return _largest(number((run.metrics or {}).get("chance")) for run in self.runs)

    @property
    def is_without_noise(self) -> bool:
        """True if its ε is infinite: a reference for the algorithm without protection."""
        return self.stated == math.inf and not self.is_void

    @property
    def names(self) -> dict[str, Any]:
        """Identifiers of a line of figures: key, setting, family, variant and promise."""
        own = {"key": self.key, "setting": self.marked_label, "family": self.family}
        return {**own, "index": self.variant_index, "promise": self.promise}

    @property
    def started(self) -> tuple[Run, ...]:
        """Runs with a row to show."""
        return tuple(run for run in self.runs if run.rows)

    @cached_property
    def headlines(self) -> list[Guarantee]:
        """First guarantee of each statement: that against the algorithm's own adversary."""
        return [run.statement.guarantees[0] for run in self.runs if run.statement is not None]

    @property
    def promise(self) -> str:
        """Unit, adjacency, adversary and δ in words: only ε of one promise can be compared."""
        for run in self.runs:
            if (said := run.statement) is not None:
                of = promise(said.unit, said.adjacency, said.guarantees[0].threat, said.delta)
                return powers(of).replace("δ = ", "δ\u00a0=\u00a0")
        return NOT_STATED

    @property
    def claimed(self) -> float | None:
        """ε that the paper claims for the run; None where it claims nothing."""
        return _largest(guarantee.claimed_total for guarantee in self.headlines)

    @property
    def proven(self) -> float | None:
        """ε that is proven without any assumption; of a setting without statement, so far."""
        if self.headlines:
            return _largest(guarantee.proven_total for guarantee in self.headlines)
        return _largest(number(run.rows[-1].get("epsilon_proven")) for run in self.started)

    @property
    def assumed(self) -> float | None:
        """ε under the statement's assumptions; None where it rests on none."""
        return _largest(guarantee.assumed_total for guarantee in self.headlines)

    @property
    def stated(self) -> float | None:
        """ε against the adversary of ``promise``, under all that the statement takes to hold."""
        if self.headlines:
            return _largest(guarantee.stated for guarantee in self.headlines)
        return self.proven

    @property
    def kind(self) -> str:
        """Kind of the ε in ``stated``: "void", "assumed" or "proven"."""
        if self.is_void:
            return "void"
        return "proven" if self.assumed is None else "assumed"

    @property
    def canaries(self) -> CanaryAudit | None:
        """Canary audit of the repetition in which canary clients found most."""
        return most_found(self.headlines)

    @property
    def spends(self) -> dict[float, int]:
        """Proven ε -> number of clients that have spent it, over all repetitions, ascending."""
        counts: dict[float, int] = {}
        for guarantee in self.headlines:
            for name, value in guarantee.clients.items():
                counts[value] = counts.get(value, 0) + guarantee.sizes.get(name, 1)
        return dict(sorted(counts.items()))

    @property
    def bytes_up(self) -> float | None:
        """Bytes that a run's clients sent, on average; None where none has started."""
        return self._of_a_run("bytes_up")

    @property
    def seconds(self) -> float | None:
        """Seconds that a run's rounds took, on average; None where none has started."""
        return self._of_a_run("seconds")

    def _of_a_run(self, name: str) -> float | None:
        """Returns the sum of ``name`` over a run's rows, averaged over the runs."""
        if not self.started:
            return None
        rows = (row for run in self.started for row in run.rows)
        return math.fsum(number(row.get(name)) or 0.0 for row in rows) / len(self.started)

    @property
    def is_void(self) -> bool:
        """True if the figures of any of its runs are void."""
        return any(run.is_void for run in self.runs)

    def final_scores(self, score: str) -> list[float]:
        """``final`` of every seed that has one; of runs that repeat a seed their mean.

        They share clients, start and cohorts, so the spread over seeds is not in them.
        """
        found: dict[Any, list[float]] = {}
        for run in self.started:
            value = final(run, score)
            if value is not None:
                found.setdefault(run.seed, []).append(value)
        return [math.fsum(values) / len(values) for values in found.values()]

    def spread(self, score: str) -> dict[str, float]:
        """Final ``score``: mean, low, high of ``interval`` over ``runs`` seeds; {} without one."""
        return spread(self.final_scores(score), is_share(score))


@dataclass(frozen=True)
class Grouping:
    """Runs of one report as settings.

    Attributes:
        settings: each family's together, in the order of their values.
    """

    settings: tuple[Setting, ...]

    @property
    def families(self) -> list[str]:
        """The algorithms, in order."""
        return list(dict.fromkeys(setting.family for setting in self.settings))

    @property
    def promises(self) -> dict[str, list[Setting]]:
        """The settings of each promise, in order."""
        found: dict[str, list[Setting]] = {}
        for setting in self.settings:
            found.setdefault(setting.promise, []).append(setting)
        return found

    def finals(self, score: str) -> pandas.DataFrame:
        """A line for each setting with a final ``score``: who it is, and its spread.

        Columns: those of ``Setting.names``; mean, low, high, runs.
        """
        lines = []
        for setting in self.settings:
            if spread := setting.spread(score):
                lines.append({**setting.names, **spread})
        return pandas.DataFrame(lines)

    def curves(self, score: str) -> pandas.DataFrame:
        """A line for each setting and round that was scored, over its repetitions.

        Columns: those of ``Setting.names``; round; mean, low, high of ``interval`` over ``runs``
        seeds; ``sent``: what all clients of a run have sent until then, in bytes.
        """
        lines = []
        for setting in self.settings:
            for run in setting.started:
                sent = 0.0
                for row in run.rows:
                    sent += number(row.get("bytes_up")) or 0.0
                    own = {"round": row["round"], "sent": sent, "score": number(row.get(score))}
                    own["seed"] = str(run.seed)
                    lines.append({**setting.names, **own})
        names = ["key", "setting", "family", "index", "promise", "round"]
        columns = [*names, "seed", "sent", "score"]
        rows = pandas.DataFrame(lines, columns=columns).dropna(subset=["score"])
        rows = rows.groupby([*names, "seed"], sort=False, as_index=False).mean()
        return rows.groupby(names, sort=False, as_index=False).agg(
            mean=("score", "mean"),
            low=("score", lambda scores: interval(scores, is_share(score))[0]),
            high=("score", lambda scores: interval(scores, is_share(score))[1]),
            runs=("score", "count"),
            sent=("sent", "mean"),
        )


def group(runs: Sequence[Run]) -> Grouping:
    """Runs gathered into settings, each family's in the order of their values.

    Runs are alike where they agree in all that may change a result but the seed. A key that only
    repeats the algorithm's name tells nothing apart.
    """
    values = varied_values(runs)
    families = _families(runs)
    apart = pandas.DataFrame(values).groupby(pandas.Series(families)).nunique().gt(1).any()
    telling = [key for key in apart.index if apart[key]]  # others only repeat the algorithm's name
    gathered: dict[tuple[str, tuple[str, ...]], list[Run]] = {}
    for run, value, family in zip(runs, values, families, strict=True):
        chosen = tuple(value[key] for key in telling)
        gathered.setdefault((family, chosen), []).append(run)
    names = list(dict.fromkeys(families))
    ordered = sorted(gathered, key=lambda k: (names.index(k[0]), [_natural(v) for v in k[1]]))
    settings: list[Setting] = []
    for index, (family, chosen) in enumerate(ordered):
        earlier = sum(setting.family == family for setting in settings)
        own = dict(zip(telling, chosen, strict=True))
        alike = tuple(gathered[family, chosen])
        settings.append(Setting(f"s{index}", family, own, names.index(family), earlier, alike))
    return Grouping(tuple(settings))


def score_names(runs: Iterable[Run]) -> list[str]:
    """All scores that rows carry: the leading one of the runs, accuracy, then by name.

    Numbers that only keep books (bytes, seconds, ε) are none. Runs that lead with different scores
    have none in common, and accuracy is first.
    """
    names = {name for run in runs for row in run.rows for name in row if _is_score(row, name)}
    leading = {run.score for run in runs}
    first = leading.pop() if len(leading) == 1 else "accuracy"
    return sorted(names, key=lambda name: (name != first, name != "accuracy", name))


def final(run: Run, score: str) -> float | None:
    """A run's final score.

    Returns:
        The mean over the last five rounds that were scored; of a run that goes on, so far; None
        where nothing was.
    """
    scored = [number(row.get(score)) for row in run.rows if row["round"] > 0]
    last = [value for value in scored if value is not None][-LAST_ROUNDS:]
    if last:
        return math.fsum(last) / len(last)
    return None


def powers(text: str) -> str:
    """``text`` with 1e-05 as 10⁻⁵, and 2.5e+07 as 2.5 × 10⁷."""
    return _EXPONENT.sub(_power, text)


def _power(found: re.Match[str]) -> str:
    """A number with an exponent as a power of ten."""
    raised = str(int(found["exponent"])).translate(_TO_RAISED)
    if found["digits"] == "1":
        return f"10{raised}"
    return f"{found['digits']}\u00a0×\u00a010{raised}"


def as_number(value: str) -> float | None:
    """A typed value as a number; ``inf`` is one.

    Returns:
        None for words.
    """
    try:
        return number(float(value))
    except ValueError:
        return None


def most_found(guarantees: Iterable[Guarantee]) -> CanaryAudit | None:
    """Returns the canary audit of the repetition in which canary clients found most."""
    found = [g.canaries for g in guarantees if g.canaries is not None]
    return max(found, key=lambda audit: (audit.estimate or 0.0, audit.at_least), default=None)


def _largest(values: Iterable[float | None]) -> float | None:
    """The largest of what is known; None where nothing is."""
    return max((value for value in values if value is not None), default=None)


def _is_score(row: Mapping[str, Any], name: str) -> bool:
    """Returns whether ``name`` is a figure of ``row`` that scores the model."""
    return name not in _BOOKKEEPING and number(row[name]) is not None


def _families(runs: Sequence[Run]) -> list[str]:
    """Each run's algorithm by name.

    It is the statement's name where that is short and tells algorithms apart, else the word typed
    for the strategy or the experiment.
    """
    short = []
    for run in runs:
        name = value_of(run, "strategy")
        short.append(typed(run).get("experiment", "run") if name == "–" else name)
    full: dict[str, str] = {}
    for run, name in zip(runs, short, strict=True):
        if run.statement is not None and len(run.statement.algorithm) <= _LONG_NAME:
            full.setdefault(name, run.statement.algorithm)
    if len(set(full.values())) < len(full):
        return short
    return [full.get(name, name) for name in short]


def _shown(key: str, value: str) -> str:
    """A value for people; of ε to the digits that tables have."""
    figure = as_number(value)
    if figure is None or key != "privacy.epsilon":
        return value
    return format_epsilon(figure)


def _natural(value: str) -> tuple[bool, float, str]:
    """Sorts numbers by value, before words by letters."""
    figure = as_number(value)
    if figure is None:
        return (True, 0.0, value)
    return (False, figure, "")
