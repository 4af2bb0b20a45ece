"""Score against claimed and proven ε, and how much of it every client has spent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fl_app.report import series
from fl_app.report.charts import ROW, Chart, Line, Look, Point
from fl_app.report.figure_parts import (
    Figure,
    Panel,
    Table,
    family_legend,
    look,
    score_name,
    show,
    so_far,
    spread_text,
    threat,
)
from fl_app.report.scales import Linear, Log
from fl_app.report.settings import Grouping, Setting
from murmur.privacy.one_run import CanaryAudit

_ROW_BASE = 10 / ROW  # a row's marks lie this share of a row above its lower edge


def epsilon_figure(grouping: Grouping, score: str) -> Figure | None:
    """Final score against claimed and proven ε on one axis."""
    found = []
    for setting in grouping.settings:
        spread, proven = series.final_spread(setting, score), series.proven(setting)
        if spread is not None and proven is not None:
            found.append((setting, spread, series.claimed(setting), proven))
    if not found:
        return None
    lines, rows = [], []
    for setting, spread, claimed, proven in found:
        says = f"{score_name(score)} {spread_text(spread)}"
        style = Look(setting.family_index, 0, setting.family_index)
        if len(grouping.families) == 1:
            style = Look(0, 0, 0)
        points = []
        if claimed is not None:
            text = f"claimed ε {show(claimed)}, {says}"
            points.append(Point(claimed, spread.mean, text, "ring"))
        text = f"proven ε {show(proven)}{so_far(setting)}, {says}"
        points.append(Point(proven, spread.mean, text, "dot", spread.low, spread.high))
        audit = series.canaries(setting)
        if audit is not None:
            low, middle, high = audit_marks(audit)
            text = f"measured ε {said_of(audit)}, {says}"
            points.append(Point(middle, spread.mean, text, "disc", size=0.6))
            link = [Point(low, spread.mean, ""), Point(high, spread.mean, "")]
            lines.append(Line(setting.key, "", style, link))
        lines.append(Line(setting.key, setting.label, style, points, joined=False))
        if claimed is not None and claimed != proven:
            link = [Point(claimed, spread.mean, ""), Point(proven, spread.mean, "")]
            lines.append(Line(setting.key, "", style, link))
        rows.append(
            [
                setting.label,
                threat(setting),
                show(claimed),
                show(proven) + so_far(setting),
                "–" if series.assumed(setting) is None else show(series.assumed(setting)),
                "–" if audit is None else said_of(audit),
                spread_text(spread),
            ]
        )
    spends = [e for _, _, claimed, proven in found for e in (claimed, proven) if e is not None]
    audits = [audit for s, *_ in found if (audit := series.canaries(s)) is not None]
    spends += [e for audit in audits for e in audit_marks(audit)]
    heights = [v for _, spread, _, _ in found for v in (spread.low, spread.high)]
    name = f"{score_name(score).capitalize()} against ε, claimed and proven"
    axes = (Log.over(spends), Linear.over(heights))
    finding = _gap([(s, c, p) for s, _, c, p in found])
    tips = [line for line in lines if line.name]
    chart = Chart(
        name,
        f"{name}. {finding}",
        "ε of the whole run (logarithmic; ∞: no protection proven)",
        score_name(score),
        *axes,
        [*[line for line in lines if not line.name], *tips],
    )
    columns = [
        "setting",
        "against",
        "ε claimed",
        "ε proven",
        "ε under assumptions",
        "ε measured by canaries",
        f"{score_name(score)}, mean of the last 5 rounds",
    ]
    reading = (
        "Hollow: the ε that the paper claims. Filled: the ε that is proven for what left the "
        "clients; a line joins the two, and one within the other says that they are equal. "
        "Upright bars: least to most over seeds."
    )
    if audits:
        reading += (
            " Small discs: what canary clients measured over the run, on the line from the least "
            "to the most that it may be where what is seen of them is normal (99.9% confidence); "
            "of labels the least."
        )
    panel = Panel(chart, family_legend(grouping), Table(name, columns, rows))
    return Figure("epsilon", name, finding, reading, [panel])


def spend_figure(grouping: Grouping) -> Figure | None:
    """How much ε every client has spent, as proven."""
    shown = [(s, counts) for s in grouping.settings if (counts := series.spends(s))]
    if not shown:
        return None
    size = len(shown)
    lines, rows = [], []
    for index, (setting, exact) in enumerate(shown):
        counts = _merged(exact)
        total = sum(exact.values())
        height = size - (index + 1) + _ROW_BASE
        points = [
            Point(
                spend,
                height,
                f"{count} of {total} clients: proven ε {show(spend)}",
                "disc",
                size=0.8 + 1.2 * math.sqrt(count / total),
            )
            for spend, count in counts.items()
        ]
        style = look(setting, grouping)
        lines.append(Line(setting.key, setting.label, style, points, joined=False))
        rows.append(
            [setting.label, str(total), show(min(exact)), show(_median(exact)), show(max(exact))]
        )
    name = "Proven ε of each client"
    alike = all(len(counts) == 1 for _, counts in shown)
    finding = (
        "Within every setting all clients have spent the same."
        if alike
        else "Clients differ in what they have spent: most in "
        + max(shown, key=lambda item: _width(item[1]))[0].label
        + "."
    )
    chart = Chart(
        name,
        f"{name}. {finding}",
        "proven ε of a client over the whole run (logarithmic)",
        "",
        Log.over(spend for _, counts in shown for spend in counts),
        Linear(0, size, ()),
        lines,
        [(setting.label, setting.key) for setting, _ in shown],
    )
    columns = ["setting", "clients", "least ε", "median ε", "most ε"]
    reading = (
        "One disc for each ε that clients have spent; its area says how many clients. All seeds "
        "together."
    )
    return Figure("spend", name, finding, reading, [Panel(chart, [], Table(name, columns, rows))])


def audit_marks(audit: CanaryAudit) -> tuple[float, float, float]:
    """The least, the likeliest and the greatest ε that canaries measured."""
    if audit.low is None or audit.estimate is None or audit.high is None:
        return (audit.at_least,) * 3
    return audit.low, audit.estimate, audit.high


def said_of(audit: CanaryAudit) -> str:
    """The same in words."""
    if audit.estimate is None:
        return f"at least {show(audit.at_least)}"
    return f"about {show(audit.estimate)} ({show(audit.low)} to {show(audit.high)})"


def _gap(found: Sequence[tuple[Setting, float | None, float]]) -> str:
    both = [(s, c, p) for s, c, p in found if c is not None and math.isfinite(c)]
    more = [(s, c, p) for s, c, p in both if p > c * 1.001]
    if not both:
        return "No setting here claims a finite ε."
    if not more:
        return "Wherever a finite ε is claimed, it is proven."
    setting, c, p = max(more, key=lambda item: item[2] / item[1])
    if len(found) == 1:
        return f"The paper claims ε = {show(c)} for this run; ε = {show(p)} is proven."
    return (
        f"Proven ε exceeds claimed ε in {len(more)} of {len(both)} settings that "
        f"claim a finite ε; most in {setting.label}: {show(c)} claimed, {show(p)} proven."
    )


def _merged(counts: Mapping[float, int], most: int = 40) -> dict[float, int]:
    """At most about ``most`` values: neighbours on a logarithmic axis are counted together."""
    finite = [value for value in counts if 0 < value < math.inf]
    if len(counts) <= most or not finite:
        return dict(counts)
    low, step = math.log(min(finite)), (math.log(max(finite) / min(finite)) or 1.0) / most
    merged: dict[float, int] = {}
    places: dict[int, float] = {}
    for value, count in counts.items():
        if value in finite:
            value = places.setdefault(int((math.log(value) - low) / step), value)
        merged[value] = merged.get(value, 0) + count
    return merged


def _median(counts: Mapping[float, int]) -> float:
    left = sum(counts.values()) // 2
    for value, count in counts.items():
        left -= count
        if left < 0:
            return value
    return math.nan


def _width(counts: Mapping[float, int]) -> float:
    values = [value for value in counts if 0 < value < math.inf]
    return max(values) / min(values) if values else 1.0
