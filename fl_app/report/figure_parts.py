"""What figures are made of, and the words that they share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fl_app.report import series
from fl_app.report.charts import Chart, Look
from fl_app.report.settings import Grouping, Setting
from fl_app.run.progress import show_epsilon


@dataclass(frozen=True)
class Table:
    """The figures behind a chart."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Panel:
    """A chart, what toggles its lines (key, name, look), and its figures."""

    chart: Chart
    legend: Sequence[tuple[str, str, Look]]
    table: Table


@dataclass(frozen=True)
class Figure:
    """A question, its answer in one sentence, how to read it, and the panels that show it."""

    id: str
    title: str
    finding: str
    reading: str
    panels: Sequence[Panel]


def look(setting: Setting, grouping: Grouping) -> Look:
    """Colour by algorithm, dashes and mark by variant; by variant alone for one algorithm."""
    if len(grouping.families) == 1:
        return Look(setting.variant_index, setting.variant_index, setting.variant_index)
    return Look(setting.family_index, setting.variant_index, setting.variant_index)


def show(value: float | None) -> str:
    """ε for people."""
    return show_epsilon("infinity" if value == math.inf else value)


def legend(grouping: Grouping) -> list[tuple[str, str, Look]]:
    """(keys, name, look) of each setting."""
    return [(s.key, s.label, look(s, grouping)) for s in grouping.settings]


def family_legend(grouping: Grouping) -> list[tuple[str, str, Look]]:
    """(keys, name, look) of each algorithm, with the adversaries that its ε is about."""
    if len(grouping.families) == 1:
        return [(s.key, s.label, Look(0, 0, 0)) for s in grouping.settings]
    legend = []
    for index, family in enumerate(grouping.families):
        members = [s for s in grouping.settings if s.family == family]
        threats = {t for s in members if (t := threat(s))}
        name = f"{family} ({', '.join(sorted(threats))})" if threats else family
        legend.append((" ".join(s.key for s in members), name, Look(index, 0, index)))
    return legend


def threat(setting: Setting) -> str:
    """The adversary that the setting's statement names first; empty before there is one."""
    for run in setting.runs:
        if (first := series.headline(run)) is not None:
            return first.threat.value.replace("_", " ")
    return ""


def so_far(setting: Setting) -> str:
    """A remark where no repetition has written its statement."""
    return "" if any(series.headline(run) for run in setting.runs) else " so far"


def spread_text(spread: series.Spread) -> str:
    """0.845 (0.830 to 0.860, 3 runs)."""
    mean = score_text(spread.mean)
    if spread.count == 1:
        return mean
    return f"{mean} ({score_text(spread.low)} to {score_text(spread.high)}, {spread.count} runs)"


def score_text(score: float) -> str:
    """Three decimals of a share, four digits of what is larger."""
    return f"{score:.3f}" if abs(score) < 10 else f"{score:,.4g}"


def score_name(name: str) -> str:
    """A score's name in words."""
    return name.replace("_", " ")
