"""The report's figures: which chart answers which question, and what it found in one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fl_app.progress import show_epsilon
from fl_app.report import series
from fl_app.report.charts import Chart, Line, Look, Point
from fl_app.report.published import Comparison
from fl_app.report.scales import Linear, Log, byte_count
from fl_app.report.settings import Grouping, Setting

_MOST_LINES = 8  # in one panel; more are drawn beside each other
_ROW_BASE = 10 / 38  # a row's marks lie this share of a row above its lower edge


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
    axes = (Linear.over(xs, whole=True), Linear.over(values))
    panels = []
    for title, settings in _panels([s for s in grouping.settings if s.key in curves]):
        lines = [_curve(s, curves[s.key], look(s, grouping)) for s in settings]
        lines += [_published(c, last) for c in known if any(s.key in c.settings for s in settings)]
        name = f"{title}: {_score(score)} over rounds" if title else f"{_score(score)} over rounds"
        chart = Chart(
            name, f"{name}. {_ends(settings, score)}", "round", _score(score), *axes, lines
        )
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
    title = f"{_score(score).capitalize()} over rounds"
    return Figure(f"rounds-{score}", title, _best(grouping, score), how, panels)


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
        says = f"{_score(score)} {_spread(spread)}"
        style = Look(setting.family_index, 0, setting.family_index)
        if len(grouping.families) == 1:
            style = Look(0, 0, 0)
        points = []
        if claimed is not None:
            text = f"claimed ε {show(claimed)}, {says}"
            points.append(Point(claimed, spread.mean, text, "ring"))
        text = f"proven ε {show(proven)}{_so_far(setting)}, {says}"
        points.append(Point(proven, spread.mean, text, "dot", spread.low, spread.high))
        lines.append(Line(setting.key, setting.label, style, points, joined=False))
        if claimed is not None and claimed != proven:
            link = [Point(claimed, spread.mean, ""), Point(proven, spread.mean, "")]
            lines.append(Line(setting.key, "", style, link))
        rows.append(
            [
                setting.label,
                _threat(setting),
                show(claimed),
                show(proven) + _so_far(setting),
                _spread(spread),
            ]
        )
    spends = [e for _, _, claimed, proven in found for e in (claimed, proven) if e is not None]
    heights = [v for _, spread, _, _ in found for v in (spread.low, spread.high)]
    name = f"{_score(score).capitalize()} against ε, claimed and proven"
    axes = (Log.over(spends), Linear.over(heights))
    finding = _gap([(s, c, p) for s, _, c, p in found])
    tips = [line for line in lines if line.name]
    chart = Chart(
        name,
        f"{name}. {finding}",
        "ε of the whole run (logarithmic; ∞: no protection proven)",
        _score(score),
        *axes,
        [*[line for line in lines if not line.name], *tips],
    )
    columns = [
        "setting",
        "against",
        "ε claimed",
        "ε proven",
        f"{_score(score)}, mean of the last 5 rounds",
    ]
    reading = (
        "Hollow: the ε that the paper claims. Filled: the ε that is proven for what left the "
        "clients; a line joins the two. Upright bars: least to most over seeds."
    )
    panel = Panel(chart, _family_legend(grouping), Table(name, columns, rows))
    return Figure("epsilon", name, finding, reading, [panel])


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
                f"{byte_count(totals[n])} sent by round {n}, {_score(score)} {_spread(curve[n])}",
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
                "–" if final is None else _spread(final),
            ]
        )
    if not lines:
        return None
    name = f"{_score(score).capitalize()} against bytes sent by clients"
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
        _score(score),
        *axes,
        lines,
    )
    columns = [
        "setting",
        "bytes, whole run",
        "bytes a round",
        f"{_score(score)}, mean of the last 5 rounds",
    ]
    reading = "Each line runs from round 1 to the last, which has a mark. Mean over seeds."
    return Figure(
        "bytes",
        name,
        finding,
        reading,
        [Panel(chart, _legend(grouping), Table(name, columns, rows))],
    )


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


def show(value: float | None) -> str:
    """ε for people."""
    return show_epsilon("infinity" if value == math.inf else value)


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
            f"round {n}: {_spread(curve[n])}",
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
        Point(n, value, f"round {n}: {value:.3f}, stated", "ring")
        for n, value in comparison.accuracy.items()
        if n <= last
    ]
    return Line("", comparison.name, Look(None, 1, 0), points)


def _rounds_table(
    name: str, settings: Sequence[Setting], curves: Mapping[str, Mapping[int, series.Spread]]
) -> Table:
    rounds = series.thin({n for s in settings for n in curves[s.key]})
    rows = [
        [str(n), *(_spread(found) if (found := curves[s.key].get(n)) else "" for s in settings)]
        for n in rounds
    ]
    return Table(name, ["round", *(s.variant or s.family for s in settings)], rows)


def _family_legend(grouping: Grouping) -> list[tuple[str, str, Look]]:
    if len(grouping.families) == 1:
        return [(s.key, s.label, Look(0, 0, 0)) for s in grouping.settings]
    legend = []
    for index, family in enumerate(grouping.families):
        members = [s for s in grouping.settings if s.family == family]
        threats = {t for s in members if (t := _threat(s))}
        name = f"{family} ({', '.join(sorted(threats))})" if threats else family
        legend.append((" ".join(s.key for s in members), name, Look(index, 0, index)))
    return legend


def _legend(grouping: Grouping) -> list[tuple[str, str, Look]]:
    return [(s.key, s.label, look(s, grouping)) for s in grouping.settings]


def _threat(setting: Setting) -> str:
    for run in setting.runs:
        if (first := series.headline(run)) is not None:
            return first.threat.value.replace("_", " ")
    return ""


def _so_far(setting: Setting) -> str:
    return "" if any(series.headline(run) for run in setting.runs) else " so far"


def _score(name: str) -> str:
    return name.replace("_", " ")


def _spread(spread: series.Spread) -> str:
    """0.845 (0.830 to 0.860, 3 runs)."""
    mean = _value(spread.mean)
    if spread.count == 1:
        return mean
    return f"{mean} ({_value(spread.low)} to {_value(spread.high)}, {spread.count} runs)"


def _value(score: float) -> str:
    """Three decimals of a share, four digits of what is larger."""
    return f"{score:.3f}" if abs(score) < 10 else f"{score:,.4g}"


def _ends(settings: Sequence[Setting], score: str) -> str:
    ends = [(s.label, series.final_spread(s, score)) for s in settings]
    return " ".join(f"{label} ends at {_value(found.mean)}." for label, found in ends if found)


def _best(grouping: Grouping, score: str) -> str:
    ends = {s.label: e for s in grouping.settings if (e := series.final_spread(s, score))}
    if not ends:
        return ""
    if len(ends) == 1:
        label, end = next(iter(ends.items()))
        return f"{label} ends at {_spread(end)}, mean of the last five rounds."
    high = max(ends, key=lambda label: ends[label].mean)
    low = min(ends, key=lambda label: ends[label].mean)
    return (
        f"In the mean of the last five rounds, {high} ends highest ({_value(ends[high].mean)}) and "
        f"{low} lowest ({_value(ends[low].mean)})."
    )


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
