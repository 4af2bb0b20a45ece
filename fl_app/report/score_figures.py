"""Scores over rounds and against the bytes that clients have sent."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from fl_app.report import series
from fl_app.report.charts import Chart, Line, Look, Point
from fl_app.report.figure_parts import (
    Figure,
    Panel,
    Table,
    legend,
    look,
    score_name,
    score_text,
    spread_text,
)
from fl_app.report.published import Comparison
from fl_app.report.scales import Linear, Log, byte_count
from fl_app.report.settings import Grouping, Setting

_DIVERGED = 10  # times the median loss
_MOST_LINES = 8  # in one panel; more are drawn beside each other


def rounds_figure(
    grouping: Grouping, score: str, comparisons: Iterable[Comparison] = ()
) -> Figure | None:
    """``score`` over rounds, a panel for each algorithm, all on the same axes."""
    curves = {s.key: series.over_rounds(s, score) for s in grouping.settings}
    curves = {key: curve for key, curve in curves.items() if curve}
    if not curves:
        return None
    known = [c for c in comparisons if c.accuracy and score == "accuracy"]
    xs = [n for curve in curves.values() for n in curve]
    values = [v for curve in curves.values() for s in curve.values() for v in (s.low, s.high)]
    last = max(xs)
    values += [v for c in known for n, v in c.accuracy.items() if n <= last]
    y = _score_axis(score, values)
    axes = (Linear.over(xs, whole=True), y)
    shown = score_name(score) + (" (logarithmic)" if isinstance(y, Log) else "")
    panels = []
    for title, settings in _panels([s for s in grouping.settings if s.key in curves]):
        lines = [_curve(s, curves[s.key], look(s, grouping)) for s in settings]
        lines += [_published(c, last) for c in known if any(s.key in c.settings for s in settings)]
        name = (
            f"{title}: {score_name(score)} over rounds"
            if title
            else f"{score_name(score)} over rounds"
        )
        chart = Chart(name, f"{name}. {_ends(settings, score)}", "round", shown, *axes, lines)
        legend = [(s.key, s.variant or s.family, look(s, grouping)) for s in settings]
        legend += [
            ("", c.name, Look(None, 1, 0))
            for c in known
            if any(s.key in c.settings for s in settings)
        ]
        panels.append(Panel(chart, legend, _rounds_table(name, settings, curves)))
    repeated = max(len(s.started) for s in grouping.settings)
    how = (
        f"Line: mean over up to {repeated} seeds; band: least to most of them."
        if repeated > 1
        else "One run each: there is no spread to show."
    )
    title = f"{score_name(score).capitalize()} over rounds"
    return Figure(f"rounds-{score}", title, _best(grouping, score), how, panels)


def bytes_figure(grouping: Grouping, score: str) -> Figure | None:
    """Score against the bytes that clients have sent."""
    lines, rows, sent = [], [], {}
    for setting in grouping.settings:
        curve, totals = series.over_rounds(setting, score), series.bytes_so_far(setting)
        kept = series.thin([n for n in curve if totals.get(n, 0) > 0])
        if not kept:
            continue
        points = [
            Point(
                totals[n],
                curve[n].mean,
                f"{byte_count(totals[n])} sent by round {n}, {score_name(score)} "
                f"{spread_text(curve[n])}",
                "dot" if n == kept[-1] else "none",
            )
            for n in kept
        ]
        lines.append(Line(setting.key, setting.label, look(setting, grouping), points))
        sent[setting.label] = totals[kept[-1]]
        final = series.final_spread(setting, score)
        rows.append(
            [
                setting.label,
                byte_count(totals[kept[-1]]),
                byte_count(totals[kept[-1]] / kept[-1]),
                "–" if final is None else spread_text(final),
            ]
        )
    if not lines:
        return None
    name = f"{score_name(score).capitalize()} against bytes sent by clients"
    least, most = min(sent, key=sent.__getitem__), max(sent, key=sent.__getitem__)
    finding = (
        f"Clients together sent {byte_count(sent[least])}."
        if len(sent) == 1
        else f"Least was sent with {least} ({byte_count(sent[least])}), most with {most} "
        f"({byte_count(sent[most])})."
    )
    axes = (
        Log.over([p.x for line in lines for p in line.points], unit="B"),
        Linear.over(p.y for line in lines for p in line.points),
    )
    chart = Chart(
        name,
        f"{name}. {finding}",
        "bytes sent so far by all clients together (logarithmic)",
        score_name(score),
        *axes,
        lines,
    )
    columns = [
        "setting",
        "bytes, whole run",
        "bytes a round",
        f"{score_name(score)}, mean of the last 5 rounds",
    ]
    reading = "Each line runs from round 1 to the last, which has a mark. Mean over seeds."
    return Figure(
        "bytes",
        name,
        finding,
        reading,
        [Panel(chart, legend(grouping), Table(name, columns, rows))],
    )


def _score_axis(score: str, values: Sequence[float]) -> Linear | Log:
    """Linear, but for a loss of which one run is far from the others: that one has diverged."""
    far = max(values) > _DIVERGED * statistics.median(values)
    return Log.over(values) if score == "loss" and min(values) > 0 and far else Linear.over(values)


def _panels(settings: Sequence[Setting]) -> list[tuple[str, list[Setting]]]:
    if len(settings) <= _MOST_LINES and len({s.variant for s in settings} - {""}) == 0:
        return [("", list(settings))]
    panels = []
    for family in dict.fromkeys(s.family for s in settings):
        members = [s for s in settings if s.family == family]
        for start in range(0, len(members), _MOST_LINES):
            panels.append((family, members[start : start + _MOST_LINES]))
    return panels


def _curve(setting: Setting, curve: Mapping[int, series.Spread], style: Look) -> Line:
    kept = series.thin(curve)
    every = max(1, len(kept) // 6)
    points = [
        Point(
            n,
            curve[n].mean,
            f"round {n}: {spread_text(curve[n])}",
            "dot" if i % every == 0 or i == len(kept) - 1 else "none",
            curve[n].low,
            curve[n].high,
        )
        for i, n in enumerate(kept)
    ]
    return Line(
        setting.key, setting.label, style, points, end_label=setting.variant or setting.family
    )


def _published(comparison: Comparison, last: int) -> Line:
    points = [
        Point(n, value, f"round {n}: {value:.3f}, reference", "ring")
        for n, value in comparison.accuracy.items()
        if n <= last
    ]
    return Line("", comparison.name, Look(None, 1, 0), points)


def _rounds_table(
    name: str, settings: Sequence[Setting], curves: Mapping[str, Mapping[int, series.Spread]]
) -> Table:
    rounds = series.thin({n for s in settings for n in curves[s.key]})
    rows = [
        [str(n), *(spread_text(found) if (found := curves[s.key].get(n)) else "" for s in settings)]
        for n in rounds
    ]
    return Table(name, ["round", *(s.variant or s.family for s in settings)], rows)


def _ends(settings: Sequence[Setting], score: str) -> str:
    ends = [(s.label, series.last_spread(s, score)) for s in settings]
    return " ".join(f"{label} ends at {score_text(found.mean)}." for label, found in ends if found)


def _best(grouping: Grouping, score: str) -> str:
    ends = {s.label: e for s in grouping.settings if (e := series.last_spread(s, score))}
    if not ends:
        return ""
    if len(ends) == 1:
        label, end = next(iter(ends.items()))
        return f"{label} ends at {spread_text(end)}."
    high = max(ends, key=lambda label: ends[label].mean)
    low = min(ends, key=lambda label: ends[label].mean)
    best, worst = score_text(ends[high].mean), score_text(ends[low].mean)
    return f"Highest at the end: {high} ({best}); lowest: {low} ({worst})."
