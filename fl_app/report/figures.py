"""The report's figures: a question, a finding, and Vega-Lite charts over one set of numbers.

A figure keeps its numbers once, as records; its charts read them under the name ``numbers``, and
the page shows them as a table and saves them as CSV. A record's ``panel`` says in which chart it is
drawn, its ``key`` whose it is: charts leave out the keys in their parameter ``hidden``. Colours are
variables of the page's style sheet, so that light, dark and paper need no second drawing;
``stand_alone`` puts values in their place.

Colour names the algorithm, dashes and marks the setting, so nothing depends on colour vision; a
setting has the same name, colour and dashes in every figure. What stands in one panel has one
promise (unit, neighbours, threat and δ): figures of other promises cannot be compared, and stand in
panels of their own on the same axes. A panel has eight lines at most, beside those of what chance
and an algorithm without noise reach.
"""

import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import altair as alt
import numpy as np
import pandas
import vl_convert
from numpy.typing import NDArray

from fl_app.config.errors import ConfigError, nearest
from fl_app.report import ASSETS
from fl_app.report.reading import Held, Run
from fl_app.report.settings import (
    AT_CHANCE,
    FROM_RAISED,
    RAISED,
    VOID,
    Grouping,
    Setting,
    as_number,
)
from fl_app.report.tables import Comparison
from fl_app.run.progress import short_name, show_epsilon
from murmur.format import format_number
from murmur.learning.features.bins import Bins, Column

CONFIG = json.loads((ASSETS / "vega.json").read_text(encoding="utf-8"))
STYLE = (ASSETS / "style.css").read_text(encoding="utf-8")
LIGHT = dict(re.findall(r"--(\w+): light-dark\((#\w+),", STYLE))  # colours on white paper
COLOURS = 8
TONES = [*(f"var(--c{index})" for index in range(COLOURS)), "var(--ink)"]
DASHES: tuple[list[int], ...] = (
    *([], [8, 4], [2, 3], [9, 3, 2, 3]),
    *([14, 4], [5, 2, 1, 2], [18, 3, 3, 3], [4, 6]),
)
SHAPES = (
    *("circle", "square", "triangle-up", "diamond"),
    *("cross", "triangle-down", "triangle-right", "triangle-left"),
)
CHANCE = "chance"
WITHOUT_NOISE = "without noise"
_MARKS = {"proven": "circle", "assumed": "diamond", "void": "cross"}  # what a stated ε is
HEIGHT = 260  # of a plot, in pixels
WIDTH = 460  # of one that stands alone
COLUMN = 238  # of a paper with two columns, in points: 84 mm
_SMALLER = 0.6  # a panel's height there
_BAND = 0.15  # how strong the band of one line of three is; of more they hide each other
ROW = 34  # of a row, where settings are rows
MOST_ROUNDS = 60  # drawn of a line
MOST_LINES = 8  # in one panel; more stand in further ones
MOST_CLIENTS = 120  # columns of a partition
DIVERGED = 10  # times the median loss
FEW_ROUNDS = 5  # so many have a mark each on the axis; Vega would also mark halves
_RAISED_POWER = re.compile(f"10([{RAISED}]+)")
_MARKED = (  # a name's marks stand in a line of their own
    f"split(replace(replace(datum.label, ' ({AT_CHANCE}', '\\n({AT_CHANCE}'), ' ({VOID}', "
    f"'\\n({VOID}'), '\\n')"
)
_QUIET = "var(--soft)"  # of words in a chart
_APART = 0.07  # of an axis, so that two lines of words do not touch
_NO_LEVEL = "!isValid(datum.level)"
SPREAD = {"low": "95% from", "high": "95% to", "runs": "runs"}  # columns of every figure with seeds


@dataclass(frozen=True)
class Panel:
    """One pair of axes, as wide as its box.

    Attributes:
        title: what tells it from the figure's other panels; also the ``panel`` of its records.
        chart: Vega-Lite, without the numbers.
    """

    title: str
    chart: Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """A question, its answer, and the panels that show it.

    Attributes:
        id: short and unique in the page; names the files that are saved.
        title: the question.
        finding: the answer in one sentence.
        reading: how to read the marks, and what they are over.
        panels: in their order.
        columns: fields of ``numbers`` that a reader wants as a table -> their headings.
        numbers: a record for each mark; ∞ is written as the sign.
    """

    id: str
    title: str
    finding: str
    reading: str
    panels: Sequence[Panel]
    columns: Mapping[str, str]
    numbers: Sequence[Mapping[str, Any]]


class Axis:
    """A logarithmic axis on which ∞ has a place of its own, behind the largest finite value.

    Args:
        values: what it must hold; 0 and less lie at its lower end.

    Attributes:
        low, high: its finite part.
        infinity: where ∞ lies.
        end: of the whole axis.
        marks: values that are labelled.
    """

    def __init__(self, values: Iterable[float]) -> None:
        listed = list(values)
        finite = [value for value in listed if 0 < value < math.inf] or [1.0]
        self.low = min(finite) / 1.25
        self.high = max(finite) * 1.25
        self.end = self.high
        self.infinity = self.high * max(2.0, (self.high / self.low) ** 0.1)
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        marks = [head * 10.0**decade for decade in decades for head in (1, 2, 3, 5)]
        inside = [mark for mark in marks if self.low <= mark <= self.high]
        self.marks = inside or [min(finite), max(finite)]
        if math.inf in listed:
            self.marks.append(self.infinity)
            self.end = self.infinity * 1.25

    def place(self, value: float) -> float:
        """Where ``value`` is drawn."""
        if math.isinf(value):
            return self.infinity
        return max(value, self.low)

    def x(self, title: str, field: str = "place", form: str = ",~g", unit: str = "") -> alt.X:
        """The channel of records that hold places on this axis.

        Args:
            title: of the axis, without its scale.
            field: of the records.
            form: D3's, of its labels.
            unit: behind each label.
        """
        label = f"datum.value > {self.high} ? '∞' : format(datum.value, '{form}') + '{unit}'"
        scale = alt.Scale(type="log", domain=[self.low, self.end])
        axis = alt.Axis(values=self.marks, labelExpr=label)
        return alt.X(f"{field}:Q", title=f"{title} (log)", scale=scale, axis=axis)


def swept_figure(
    grouping: Grouping, score: str, over: str | None = None, by: str | None = None
) -> Figure | None:
    """Final score over one swept key, a line for each value of another.

    A swept budget is drawn at the ε that is stated for what was released. What else was swept has
    panels of its own.

    Args:
        grouping: the runs as settings.
        score: that is drawn.
        over: swept key along the axis; None: the budget, else the first number.
        by: swept key with a line for each value; None: the next one.

    Returns:
        None without two points along the axis.

    Raises:
        ConfigError: ``over`` or ``by`` was not swept.
    """
    settings = [s for s in grouping.settings if s.final_scores(score)]
    keys = list(settings[0].values) if settings else []
    for option, key in (("--over", over), ("--by", by)):
        if key is not None and key not in keys:
            raise ConfigError(f"{option}={key}: was not swept; {nearest(key, keys)}")
    numbers = [key for key in keys if len({as_number(s.values[key]) for s in settings}) > 1]
    numbers.sort(key=lambda key: key != "privacy.epsilon")
    over = over or next(iter(numbers), None)
    by = by or next((key for key in keys if key != over), None)
    lines = []
    for setting in settings:
        x = as_number(setting.values[over]) if over else None
        if over == "privacy.epsilon":
            x = setting.stated
        if x is not None:
            along = replace(setting, values={k: v for k, v in setting.values.items() if k == by})
            apart = {k: v for k, v in setting.values.items() if k not in (over, by)}
            panel = [setting.family] * (by is not None and len(grouping.families) > 1)
            panel += [f"{short_name(key, apart)} = {value}" for key, value in apart.items()]
            panel.append(setting.promise)
            line = {"key": setting.key, "x": x, "line": along.label, "panel": ". ".join(panel)}
            level = WITHOUT_NOISE if over == "privacy.epsilon" and math.isinf(x) else None
            lines.append({**line, "level": level})
    if over is None or len({line["x"] for line in lines}) < 2:
        return None
    axis = Axis(cast(float, line["x"]) for line in lines if line["level"] is None)
    points = pandas.DataFrame(lines).merge(grouping.finals(score), on="key")
    points = _in_parts(points.assign(index=_places(points["line"], points["family"])))
    points["place"] = points["x"].map(axis.place)
    if over == "privacy.epsilon":
        points["x"] = points["x"].map(_written)
    name = short_name(over, keys)
    scale = axis.x({"privacy.epsilon": "ε of the whole run"}.get(over, over))
    noisy = points[points["level"].isna()]
    best = noisy.loc[noisy["mean"].idxmax()]
    finding = f"Highest: {best['line']} with {_short(best['mean'])} at {name} = {best['x']:g}."
    reading = f"{_over_seeds(grouping)} Compare lines of one panel only: they have one promise."
    if points["line"].nunique() > 1:
        reading += f" Dotted: the best of all shown settings at this {name} or less."
    title = f"{_capital(score)} over {name}"
    if by is not None:
        title += f" by {short_name(by, keys)}"
    points = _with_chance(points, grouping, score)
    reading += _about_levels(points)
    panels = _line_panels(points, grouping, scale, "x", score, is_frontier=True)
    columns = {"setting": "setting", "promise": "promise", "x": over, "mean": score, **SPREAD}
    return Figure("swept", title, finding, reading, panels, columns, _records(points, columns))


def epsilon_figure(grouping: Grouping, score: str) -> Figure | None:
    """Final score against the ε that the paper claims and the ε that is proven, assumed or void.

    What canary clients measured stands beside them, with its interval.

    Args:
        grouping: the runs as settings.
        score: that is drawn.

    Returns:
        None where nothing was scored or stated.
    """
    shown = [s for s in grouping.settings if s.final_scores(score) and s.stated is not None]
    marks = [
        {"key": setting.key, "kind": kind, "epsilon": epsilon}
        for setting in shown
        for kind, epsilon in _epsilons(setting).items()
        if epsilon is not None
    ]
    if not marks:
        return None
    axis = Axis(cast(float, mark["epsilon"]) for mark in marks)
    points = pandas.DataFrame(marks).merge(grouping.finals(score), on="key")
    points["place"] = points["epsilon"].map(axis.place)
    points["epsilon"] = [
        _written(epsilon, up=kind not in ("measured", "measured, least"))
        for epsilon, kind in zip(points["epsilon"], points["kind"], strict=True)
    ]
    points = _in_parts(points.assign(panel=points["promise"], line=points["key"], level=None))
    points["line"] = points["family"]
    free = [setting.key for setting in shown if setting.is_without_noise]
    levels = grouping.finals(score)
    levels = levels[levels["key"].isin(free)].assign(level=WITHOUT_NOISE)
    levels = levels.assign(kind=WITHOUT_NOISE, epsilon=math.inf)
    levels = levels.merge(points[["key", "panel", "line"]].drop_duplicates(), on="key")
    points = _with_chance(pandas.concat([points, levels], ignore_index=True), grouping, score)
    y = _y(points, score)
    scale = alt.Scale(domain=list(_MARKS), range=list(_MARKS.values()))
    marks_of_kinds = alt.Shape("kind:N", scale=scale, legend=None)
    panels = []
    for title, own in points.groupby("panel", sort=False):
        looks = _looks(own, grouping)
        base = _marks_of(title).encode(x=axis.x("ε of the whole run"), y=y)
        base = base.encode(color=looks["color"], tooltip=_tips("setting", "kind", "epsilon", score))
        claim = base.transform_filter("indexof(datum.kind, 'measured') < 0")
        canaries = base.transform_filter("indexof(datum.kind, 'measured') == 0")
        stated = base.transform_filter(f"indexof({list(_MARKS)}, datum.kind) >= 0")
        claimed = base.transform_filter("datum.kind == 'claimed'")
        measured = base.transform_filter("datum.kind == 'measured'")
        layers = [
            claim.mark_line(strokeWidth=1.5).encode(detail="key:N"),
            canaries.mark_line(strokeWidth=1.5).encode(detail="key:N"),
            stated.mark_rule(clip=True).encode(y=_y(points, score, "low"), y2="high:Q"),
            stated.mark_point(filled=True, size=70, opacity=1).encode(shape=marks_of_kinds),
            claimed.mark_point(filled=False, size=150, opacity=1),
            measured.mark_point(filled=True, size=25, opacity=1),
            *_levels(title, y, looks["color"]),
        ]
        panels.append(panel_of(title, layers))
    reading = (
        "Hollow: the ε that the paper claims; filled: the ε that is proven for what left the "
        "clients against the adversary named; a line joins the two, and one within the other says "
        "that they are equal; ∞: unprotected. Upright: 95% interval of the "
        "mean over seeds (Student's t)."
    )
    reading += _about_levels(points)
    if any(setting.kind == "void" for setting in shown):
        reading += " A cross: void, not to be relied on; the privacy statement says why."
    if any(setting.kind == "assumed" for setting in shown):
        reading += " A diamond: not proven, but under all assumptions of the privacy statement."
    if any(setting.canaries for setting in shown):
        reading += (
            " Small discs: what canary clients measured, from the least to the most it may be."
        )
    columns = {"setting": "setting", "promise": "promise", "kind": "which ε", "epsilon": "ε"}
    columns |= {"mean": score, **SPREAD}
    title = f"{_capital(score)} against ε, claimed and proven"
    return Figure(
        "epsilon", title, _gap(shown), reading, panels, columns, _records(points, columns)
    )


def rounds_figure(
    grouping: Grouping, score: str, references: Iterable[Comparison] = ()
) -> Figure | None:
    """``score`` over rounds, a panel for each promise and algorithm, all on the same axes.

    Args:
        grouping: the runs as settings.
        score: that is drawn.
        references: what papers found for any of the settings; drawn where accuracy is.

    Returns:
        None where no round was scored.
    """
    curves = grouping.curves(score)
    if curves.empty:
        return None
    finding = _ends(curves)
    last = curves["round"].max()
    points = _in_parts(_into_panels(_thinned(curves)))
    reading = _over_seeds(grouping)
    for comparison in references:
        name = comparison.about["name"]
        beside = points[points["key"].isin([setting.key for setting in comparison.settings])]
        accuracy = {n: value for n, value in comparison.accuracy.items() if n <= last}
        if score == "accuracy" and accuracy and len(beside):
            found = {"round": list(accuracy), "mean": list(accuracy.values())}
            lines = pandas.DataFrame(found).merge(beside[["panel"]].drop_duplicates(), how="cross")
            same = {"key": "", "family": "", "index": 1, "line": name, "setting": name}
            points = pandas.concat([points, lines.assign(**same)], ignore_index=True)
            reading += f" Dashed and dark: {name}."
    first = int(curves["round"].min())
    end = max(int(last), 1)
    few: Any = list(range(first, end + 1)) if end - first <= FEW_ROUNDS else alt.Undefined
    axis = alt.Axis(tickMinStep=1, format="d", values=few)
    scale = alt.Scale(domain=[first, end])
    x = alt.X("round:Q", title="round", axis=axis, scale=scale)
    single = points.groupby("panel")["round"].transform("max") <= 1
    if single.any():
        points = points[
            ~single | (points["round"] == points.groupby("key")["round"].transform("max"))
        ]
        reading += " Of single rounds: a dot for each setting, on its 95% interval."
    points = _with_chance(points, grouping, score)
    reading += _about_levels(points)
    panels = _line_panels(points, grouping, x, "round", score)
    columns = {"setting": "setting", "round": "round", "mean": score, **SPREAD}
    title = f"{_capital(score)} over rounds"
    return Figure(
        f"rounds-{score}", title, finding, reading, panels, columns, _records(points, columns)
    )


def bytes_figure(grouping: Grouping, score: str) -> Figure | None:
    """Score against the bytes that all clients together have sent.

    Args:
        grouping: the runs as settings.
        score: that is drawn.

    Returns:
        None where no round was scored, or nothing was sent.
    """
    curves = grouping.curves(score)
    curves = curves[curves["sent"] > 0]
    if curves.empty:
        return None
    points = _in_parts(_into_panels(_thinned(curves)))
    x = Axis(points["sent"]).x("sent so far by all clients", "sent", "~s", "B")
    sent = curves.groupby("setting")["sent"].max().sort_values()
    finding = f"Clients together sent {byte_count(sent.iloc[0])}."
    if len(sent) > 1:
        finding = f"Least was sent with {sent.index[0]} ({byte_count(sent.iloc[0])}), "
        finding += f"most with {sent.index[-1]} ({byte_count(sent.iloc[-1])})."
    points = _with_chance(points, grouping, score)
    reading = f"Further left is cheaper. {_over_seeds(grouping)}{_about_levels(points)}"
    panels = _line_panels(points, grouping, x, "sent", score)
    columns = {"setting": "setting", "round": "round", "sent": "bytes sent", "mean": score}
    columns |= SPREAD
    title = f"{_capital(score)} against bytes sent by clients"
    return Figure("bytes", title, finding, reading, panels, columns, _records(points, columns))


def spend_figure(grouping: Grouping) -> Figure | None:
    """How much ε every client has spent, as proven without assumptions.

    What agrees to two digits is one disc, at the largest of it.

    Returns:
        None where no statement lists clients.
    """
    lines = [
        {**setting.names, "about": f"{epsilon:.2g}", "epsilon": epsilon, "clients": clients}
        for setting in grouping.settings
        for epsilon, clients in setting.spends.items()
    ]
    if not lines:
        return None
    points = pandas.DataFrame(lines)
    columns = {"setting": "setting", "promise": "promise", "epsilon": "ε", "clients": "clients"}
    names = ["key", "family", "index", "setting", "promise", "about"]
    alike = points.groupby(names, sort=False)
    points = alike.agg({"epsilon": "max", "clients": "sum"}).reset_index()
    points["share"] = points["clients"] / points.groupby("key")["clients"].transform("sum")
    axis = Axis(points["epsilon"])
    points["place"] = points["epsilon"].map(axis.place)
    points["epsilon"] = points["epsilon"].map(_written)
    points["panel"] = points["promise"]
    points["line"] = points["setting"]
    panels = []
    for title, own in points.groupby("panel", sort=False):
        y = alt.Y("setting:N", title=None, sort=None, axis=alt.Axis(labelExpr=_MARKED))
        size = alt.Size("share:Q", legend=None, scale=alt.Scale(domain=[0, 1], range=[30, 400]))
        discs = (
            numbers_of("panel", title)
            .mark_circle(opacity=0.6)
            .encode(
                x=axis.x("proven ε of a client over the run"),
                y=y,
                size=size,
                color=_looks(own, grouping)["color"].legend(None),
                tooltip=_tips("setting", "epsilon", "clients"),
            )
        )
        panels.append(panel_of(title, [discs], ROW * own["key"].nunique(), zoomed="x"))
    counts = points.groupby("setting", sort=False)["epsilon"].count()
    finding = "Within every setting all clients have spent the same."
    if counts.max() > 1:
        finding = f"Clients differ in what they have spent: most in {counts.idxmax()}."
    reading = "One disc for each ε that clients have spent; its area says how many, over all seeds."
    title = "Proven ε of each client"
    return Figure("spend", title, finding, reading, panels, columns, _records(points, columns))


def partition_figure(index: int, label: str, held: Held, where: str) -> Figure:
    """Who holds how many examples, and of which classes; of many clients an even choice.

    Args:
        index: of this partition among those of the page.
        label: whose it is; the figure's title.
        held: examples by client and class.
        where: data set and partition in words.
    """
    table = np.array(held.counts)
    drawn = thin(range(len(table)), MOST_CLIENTS)
    names = [held.shown[row] for row in drawn]
    cells = pandas.DataFrame(table[drawn], index=names).stack().reset_index()
    cells.columns = pandas.Index(["client", "class", "examples"])
    cells["held"] = cells.groupby("client")["examples"].transform("sum")
    cells["share"] = cells["examples"] / cells["held"].clip(lower=1)
    base = alt.Chart(alt.NamedData("numbers")).encode(
        x=alt.X("client:O", title="client", axis=alt.Axis(labelAngle=0))
    )
    first = base.transform_filter("datum.class == 0").mark_bar(color=TONES[0])
    bars = first.encode(y=alt.Y("held:Q", title="examples"), tooltip=["client:O", "held:Q"])
    scale = alt.Scale(type="sqrt", domain=[0, 1], range=[0, 1])
    squares = base.mark_rect(color=TONES[0]).encode(
        y=alt.Y("class:O", title="class"),
        opacity=alt.Opacity("share:Q", legend=None, scale=scale),
        tooltip=["client:O", "class:O", "examples:Q", alt.Tooltip("share:Q", format=".3f")],
    )
    panels = [
        panel_of("Examples of each client", [bars], 120, zoomed=""),
        panel_of("Classes: stronger for a larger share", [squares], 18 * table.shape[1], zoomed=""),
    ]
    finding = f"{where}, {held.clients:,} clients, {held.examples:,} examples."
    reading = "A column is a client: above, how much it holds; below, of which classes."
    if len(drawn) < held.clients:
        reading += f" An even choice of {len(drawn)} clients is drawn."
    columns = {"client": "client", "class": "class", "examples": "examples", "share": "share"}
    return Figure(
        f"partition-{index}",
        label,
        finding,
        reading,
        panels,
        columns,
        _records(cells, [*columns, "held"]),
    )


def stand_alone(figure: Figure, width: int = WIDTH, columns: int = 2) -> dict[str, Any]:
    """One Vega-Lite chart of all panels, for other programs and for print.

    Args:
        figure: any of the above.
        width: of a panel, in pixels, without its axis.
        columns: how many panels stand beside each other.

    Returns:
        A specification with the numbers, and the colours for white paper, in it.
    """
    charts = []
    of_the_whole = ("params", "config", "$schema")
    for panel in figure.panels:
        own = {key: value for key, value in panel.chart.items() if key not in of_the_whole}
        charts.append({**own, "title": _title(panel, width // 7), "width": width})
    apart = dict.fromkeys(("color", "shape", "strokeDash"), "independent")
    whole = {
        "concat": charts,
        "columns": columns,
        "params": [{"name": "hidden", "value": []}],
        "datasets": {"numbers": list(figure.numbers)},
        "resolve": {"legend": apart, "scale": apart},
        "config": {**CONFIG, "background": "white"},
    }
    text = json.dumps(whole)
    return dict(json.loads(re.sub(r"var\(--(\w+)\)", lambda name: LIGHT[name[1]], text)))


def as_svg(figure: Figure) -> str:
    """A figure that stands alone as a picture: the same bytes for the same figure."""
    return _svg(stand_alone(figure))


def as_files(figure: Figure) -> dict[str, bytes]:
    """A figure as wide as a column of a paper (``COLUMN``), its panels below each other.

    Returns:
        Ending (svg, pdf, png) -> content; PNG has 600 dots an inch.
    """
    width = COLUMN
    spec = _for_a_column(figure, width)
    while (wide := _width(_svg(spec))) > COLUMN and width > COLUMN // 4:
        width -= max(1, math.ceil(wide - COLUMN))
        spec = _for_a_column(figure, width)
    # A unit is a point in PDF, as it stands; in SVG it must be said.
    svg = re.sub(
        r'(<svg[^>]*? width="[0-9.]+)(" height="[0-9.]+)"', r'\1pt\2pt"', _svg(spec), count=1
    )
    return {
        "svg": svg.encode(),
        "pdf": vl_convert.vegalite_to_pdf(spec),
        "png": vl_convert.vegalite_to_png(spec, ppi=600),
    }


def _for_a_column(figure: Figure, width: int) -> dict[str, Any]:
    """``stand_alone`` in the letters of a paper."""
    spec = stand_alone(figure, width, 1)
    for panel, chart in zip(figure.panels, spec["concat"], strict=True):
        chart["title"] = _title(panel, COLUMN // 4)
        chart["height"] = round(_SMALLER * chart["height"])
    letters = {"labelFontSize": 7, "titleFontSize": 7}
    config = spec["config"]
    config["axis"] = {**config["axis"], **letters, "labelLimit": COLUMN // 2}
    config["legend"] = {**config["legend"], **letters, "labelLimit": COLUMN * 2 // 3, "columns": 1}
    config["title"] = {**config["title"], "fontSize": 7}
    config["text"] = {"fontSize": 7}
    config["padding"] = 2
    spec["align"] = "none"  # or the widest legend would move every panel
    return spec


def _title(panel: Panel, letters: int) -> list[str]:
    """A panel's title in lines; few fonts for print have raised figures."""
    plain = _RAISED_POWER.sub(lambda found: f"1e{found[1].translate(FROM_RAISED)}", panel.title)
    return textwrap.wrap(plain.replace(" = ", "\u00a0=\u00a0"), letters)


def _width(svg: str) -> float:
    """Of a picture, in pixels."""
    found = re.search(r'<svg[^>]* width="([0-9.]+)"', svg)
    assert found is not None, "vl-convert writes a picture's width"
    return float(found[1])


def _svg(spec: dict[str, Any]) -> str:
    """A chart as a picture.

    Vega numbers clipping paths on and on in a process; here they begin at 0 in each picture.
    """
    drawn: str = vl_convert.vegalite_to_svg(spec)
    known = dict.fromkeys(re.findall(r'id="(clip\d+)"', drawn))
    places = {name: f"clip{place}" for place, name in enumerate(known)}
    return re.sub(r"\bclip\d+\b", lambda name: places.get(name[0], name[0]), drawn)


def thin(numbers: Iterable[int], most: int = MOST_ROUNDS) -> list[int]:
    """At most about ``most`` of ``numbers``, evenly, with the first and the last; ascending."""
    ordered = sorted(numbers)
    kept = ordered[:: max(1, math.ceil(len(ordered) / most))]
    if ordered and kept[-1] != ordered[-1]:
        kept.append(ordered[-1])
    return kept


def byte_count(value: float) -> str:
    """Bytes in decimal units, to three digits."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size * 0.9995:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} B"


def numbers_of(field: str, value: str) -> alt.Chart:
    """The numbers of one panel, without settings that are switched off in the page.

    Args:
        field: of the records, such as ``panel``.
        value: that it must have.
    """
    seen = f"datum.{field} == {json.dumps(value)} && indexof(hidden, datum.key) < 0"
    return alt.Chart(alt.NamedData("numbers")).transform_filter(seen)


def panel_of(
    title: str, layers: Sequence[alt.Chart], height: int = HEIGHT, zoomed: str = "xy"
) -> Panel:
    """The layers on common axes; a drag moves them, a wheel with Ctrl (or two fingers) zooms.

    Args:
        title: of the panel.
        layers: from the lowest to the uppermost; the first one takes the drag.
        height: in pixels; it is as wide as its box.
        zoomed: which axes move, of those with numbers.
    """
    first = layers[0]
    if zoomed:
        wheel = "wheel![event.ctrlKey]"
        drag = alt.selection_interval(bind="scales", encodings=cast(Any, list(zoomed)), zoom=wheel)
        first = first.add_params(drag)
    hidden = alt.param(name="hidden", value=[])
    chart = alt.layer(first, *layers[1:]).add_params(hidden)
    return Panel(title, chart.properties(width="container", height=height).to_dict())


def _line_panels(
    points: pandas.DataFrame,
    grouping: Grouping,
    x: alt.X,
    read: str,
    score: str,
    is_frontier: bool = False,
) -> list[Panel]:
    """Lines through means, in bands of their 95 % intervals, a panel for each ``panel``.

    A panel of single rounds is a dot plot: there is nothing for a line to join.

    Args:
        points: columns panel, promise, key, family, index, line, mean, low, high, level, and what
            ``x`` names.
        grouping: the runs as settings, whose order chooses colours.
        x: the channel of the horizontal axis.
        read: the field that a tooltip has beside the score.
        score: that is drawn.
        is_frontier: draw the best of all shown settings of the panel's promise up to each x, where
            the promise has several lines.
    """
    y = _y(points, score)
    panels = []
    for title, own in points.groupby("panel", sort=False):
        looks = _looks(own, grouping)
        if read == "round" and own["round"].max() <= 1:
            panels.append(_dots(title, own, y, looks, score))
            continue
        stroke = {name: looks[name] for name in ("color", "strokeDash")}
        marks = {name: looks[name] for name in ("color", "shape")}
        base = _marks_of(title).encode(x=x, y=y)
        low = _y(points, score, "low")
        band = base.mark_area(opacity=_BAND / max(1, own["key"].nunique() - 2), clip=True)
        dots = base.mark_point(filled=True, size=35, opacity=1)
        layers = [
            band.encode(y=low, y2="high:Q", color=looks["color"]),
            base.mark_line(strokeWidth=2).encode(**stroke),
            dots.encode(tooltip=_tips("setting", read, score), **marks),
        ]
        promise = own["promise"].iloc[0]
        alike = (points["promise"] == promise) & points["level"].isna()
        if is_frontier and points["line"][alike].nunique() > 1:
            best = (
                numbers_of("promise", promise)
                .transform_filter(_NO_LEVEL)
                .encode(x=x, y=y)
                .transform_window(mean="max(mean)", sort=[alt.SortField("place")], frame=[None, 0])
            )
            steps = best.mark_line(interpolate="step-after", strokeDash=[1, 3], color=TONES[-1])
            layers.append(steps)
        panels.append(panel_of(title, [*layers, *_levels(title, y, looks["color"])]))
    return panels


def _dots(
    title: str, own: pandas.DataFrame, y: alt.Y, looks: Mapping[str, Any], score: str
) -> Panel:
    """A row for each setting: its mean as a dot on its interval, beside chance.

    ``y``: the scale of the other panels, which is that of the horizontal axis here.
    """
    of_y = cast(dict[str, Any], y.to_dict())
    scale = of_y["scale"]
    title_of = of_y["title"]
    x = alt.X("mean:Q", title=title_of, scale=alt.Scale(**scale))
    rows = alt.Y("setting:N", title=None, sort=None, axis=alt.Axis(labelExpr=_MARKED))
    base = _marks_of(title).encode(y=rows, color=looks["color"].legend(None))
    dots = base.encode(x=x, tooltip=_tips("setting", "round", score))
    ends = base.encode(x=alt.X("low:Q", title=title_of, scale=alt.Scale(**scale)), x2="high:Q")
    of_level = numbers_of("panel", title).transform_filter("isValid(datum.level)").encode(x=x)
    label = of_level.mark_text(align="left", baseline="top", dx=3, fill=_QUIET)
    layers = [
        ends.mark_rule(strokeWidth=1.5, clip=True),
        dots.mark_point(filled=True, size=70, opacity=1).encode(shape=looks["shape"].legend(None)),
        of_level.mark_rule(strokeDash=[1, 2], color=TONES[-1]),
        label.encode(y=alt.value(0), text="shown:N"),
    ]
    height = ROW * max(2, own["setting"][own["level"].isna()].nunique())
    return panel_of(title, layers, height, zoomed="x")


def _marks_of(title: str) -> alt.Chart:
    """The numbers of a panel without the levels that are lines across it."""
    return numbers_of("panel", title).transform_filter(_NO_LEVEL)


def _levels(title: str, y: alt.Y, color: alt.Color) -> list[alt.Chart]:
    """Lines across a panel: what chance and algorithms without noise reach."""
    base = numbers_of("panel", title).encode(y=y)
    chance = base.transform_filter(f"datum.level == '{CHANCE}'")
    free = base.transform_filter(f"datum.level == '{WITHOUT_NOISE}'")
    tips = [alt.Tooltip("setting:N"), alt.Tooltip("mean:Q", format=".4~g", title="mean")]
    label = base.transform_filter("isValid(datum.shown)")
    text = label.mark_text(align="right", baseline="bottom", dy=-2, fill=_QUIET)
    return [
        chance.mark_rule(strokeDash=[1, 2], color=TONES[-1]),
        free.mark_rule(strokeDash=[1, 2], strokeWidth=1.5).encode(color=color, tooltip=tips),
        text.encode(x=alt.value("width"), text="shown:N"),
    ]


def _with_chance(points: pandas.DataFrame, grouping: Grouping, score: str) -> pandas.DataFrame:
    """``points``, the level of chance in each panel beside them, and what names levels there.

    Levels that would be printed over each other have one name, which stands at the uppermost.

    Args:
        points: columns panel, key, mean; of a level its name in ``level``, if there are any.
        grouping: the runs as settings, which know chance.
        score: that is drawn; chance is known of accuracy.
    """
    if "level" not in points:
        points = points.assign(level=None)
    known = {setting.key: setting.chance for setting in grouping.settings}
    lines = []
    if score == "accuracy":
        for (title, promise), own in points.groupby(["panel", "promise"], sort=False):
            found = {known.get(key) for key in own["key"]} - {None}
            same = {"panel": title, "promise": promise, "key": "", "family": "", "level": CHANCE}
            named = {**same, "line": CHANCE, "setting": CHANCE, "index": 0}
            lines += [{**named, "mean": value} for value in sorted(cast(set[float], found))]
    points = pandas.concat([points, pandas.DataFrame(lines)], ignore_index=True)
    points["shown"] = None
    values = points[["mean", "low", "high"]].stack()
    near = _APART * (values.max() - values.min())
    for _, own in points[points["level"].notna()].groupby("panel"):
        upper = None
        several = (own["level"] == WITHOUT_NOISE).sum() > 1
        for index, line in own.sort_values("mean", ascending=False).iterrows():
            if upper is None or points.at[upper, "mean"] - line["mean"] > near:
                upper = index
                is_one_of_several = several and line["level"] == WITHOUT_NOISE
                points.at[upper, "shown"] = line["setting" if is_one_of_several else "level"]
            elif points.at[upper, "level"] == line["level"]:
                points.at[upper, "shown"] = line["level"]
            else:
                points.at[upper, "shown"] += f", {line['level']}"
    return points


def _about_levels(points: pandas.DataFrame) -> str:
    """How to read the lines across panels, in a sentence; "" where there are none."""
    found = {CHANCE, WITHOUT_NOISE} & set(points["level"].dropna())
    said = {
        CHANCE: "chance (always naming the most frequent class)",
        WITHOUT_NOISE: "what an algorithm reaches without noise",
    }
    if not found:
        return ""
    return f" Dotted across: {' and '.join(said[level] for level in said if level in found)}."


def _places(lines: pandas.Series, families: pandas.Series) -> pandas.Series:
    """The place of each line among its algorithm's."""
    return lines.groupby(families).transform(lambda own: pandas.factorize(own)[0])


def _looks(own: pandas.DataFrame, grouping: Grouping) -> dict[str, Any]:
    """Colour, dashes and mark of a panel's lines; what has no family is a reference in ink.

    Returns:
        The channels ``color``, ``strokeDash`` and ``shape``, with a legend where there are several.
    """
    if "level" in own:
        own = own[own["level"] != CHANCE]
    lines = own.drop_duplicates("line")
    places = {name: index % COLOURS for index, name in enumerate(grouping.families)}
    colours = lines["family"].map(places).fillna(-1).astype(int)
    ranges = {
        "color": [TONES[colour] for colour in colours],
        "strokeDash": [DASHES[int(index) % len(DASHES)] for index in lines["index"]],
        "shape": [SHAPES[int(index) % len(SHAPES)] for index in lines["index"]],
    }
    legend: Any = alt.Legend(labelExpr=_MARKED)
    if len(lines) == 1:
        legend = None
    elif lines["line"].str.len().max() > 18:
        legend = alt.Legend(columns=1, labelExpr=_MARKED)
    channels = {"color": alt.Color, "strokeDash": alt.StrokeDash, "shape": alt.Shape}
    names = list(lines["line"])
    field = "setting" if _are_settings(own) else "line"
    return {
        name: channel(f"{field}:N", legend=legend).scale(domain=names, range=ranges[name])
        for name, channel in channels.items()
    }


def _are_settings(points: pandas.DataFrame) -> bool:
    """Whether each line is a setting: then records need no second name."""
    return bool((points["line"] == points["setting"]).all())


def _y(points: pandas.DataFrame, score: str, field: str = "mean") -> alt.Y:
    """The score's axis: linear, but for a loss of which one run is far from the others.

    Args:
        points: all panels', so that their axes are the same.
        score: its title.
        field: which of mean, low and high it draws.
    """
    values = points[["mean", "low", "high"]].stack()
    low = values.min()
    high = values.max()
    title = score.replace("_", " ")
    if score == "loss" and low > 0 and high > DIVERGED * values.median():
        return alt.Y(f"{field}:Q", title=f"{title} (log)", scale=alt.Scale(type="log"))
    if score != "loss" and points["mean"].between(0, 1).all():
        low = max(low, 0.0)  # an interval may go beyond what a share can be
        high = min(high, 1.0)
    room = 0.05 * (high - low) or 0.5 * abs(low) or 0.5
    return alt.Y(f"{field}:Q", title=title, scale=alt.Scale(domain=[low - room, high + room]))


def _tips(setting: str, *fields: str) -> list[alt.Tooltip]:
    """What a pointer reads at a mark.

    Args:
        setting: the field that names the mark.
        fields: further ones; the last may be a score, which is read with its spread.
    """
    own = [alt.Tooltip(field=name, type="nominal") for name in (setting, *fields)]
    if fields[-1] in ("epsilon", "clients"):
        return own
    spread = {"mean": fields[-1].replace("_", " "), "low": "95% from", "high": "95% to"}
    means = [alt.Tooltip(f"{name}:Q", format=".4~g", title=spread[name]) for name in spread]
    return [*own[:-1], *means]


def _into_panels(curves: pandas.DataFrame) -> pandas.DataFrame:
    """With each line's ``panel`` and its name there (``line``), which is the setting's.

    Lines of one promise share a panel; where an algorithm has several, it has a panel of its own.

    Args:
        curves: of ``Grouping.curves``.
    """
    per_promise = curves.groupby("promise")
    is_apart = per_promise["key"].transform("nunique") > per_promise["family"].transform("nunique")
    whole = curves["family"] + ". " + curves["promise"]
    panel = curves["promise"].where(~is_apart, whole)
    return curves.assign(panel=panel, line=curves["setting"])


def _in_parts(points: pandas.DataFrame) -> pandas.DataFrame:
    """With panels of eight lines at most: more of them stand in further parts."""
    number = _places(points["line"], points["panel"])
    part = (number // MOST_LINES + 1).astype(str)
    panel = points["panel"].where(number < MOST_LINES, points["panel"] + ", part " + part)
    return points.assign(panel=panel)


def _thinned(curves: pandas.DataFrame) -> pandas.DataFrame:
    """At most about 60 rounds of each line, with its last one, whichever that is."""
    last = curves.groupby("key")["round"].transform("max")
    return curves[curves["round"].isin(thin(set(curves["round"]))) | (curves["round"] == last)]


def _records(points: pandas.DataFrame, columns: Iterable[str]) -> list[dict[str, Any]]:
    """For JSON: what is read or drawn, with numbers as ``_six``."""
    drawn = {*columns, "key", "panel", "line", "place", "share", "level", "shown"}
    if "line" in points and _are_settings(points):
        drawn.discard("line")
    kept = points[[name for name in points if name in drawn]]
    return [
        {name: _six(value) for name, value in line.items() if not pandas.isna(value)}
        for line in kept.to_dict("records")
    ]


def _six(value: Any) -> Any:
    """A number with six digits, more than shows; ∞ as a sign, which JSON has not; a text as is."""
    if value == math.inf:
        return "∞"
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value


def _epsilons(setting: Setting) -> dict[str, float | None]:
    """Each ε of a setting by its kind."""
    found = {"claimed": setting.claimed, setting.kind: setting.stated}
    audit = setting.canaries
    if audit is not None and audit.estimate is not None:
        found |= {"measured, least": audit.low, "measured": audit.estimate}
        found["measured, most"] = audit.high
    elif audit is not None:
        found["measured"] = audit.at_least
    return found


def _gap(shown: Sequence[Setting]) -> str:
    """By how much the stated ε exceeds the claimed one, in a sentence; void ones are left out."""
    relied_on = [s for s in shown if not s.is_void]
    if not relied_on:
        return "Every ε here is void: rely on none of them."
    finite = {s.label: s for s in relied_on if s.claimed is not None and s.claimed < math.inf}
    if not finite:
        return "No setting here claims a finite ε."
    ways = " or ".join(sorted({s.kind for s in finite.values()}, reverse=True))
    more = {
        label: s.stated / s.claimed
        for label, s in finite.items()
        if s.claimed and s.stated is not None and s.stated > s.claimed * 1.001
    }
    if not more:
        return f"Wherever a finite ε is claimed, it is {ways}."
    label = max(more, key=more.__getitem__)
    claimed = show_epsilon(finite[label].claimed)
    stated = f"{show_epsilon(finite[label].stated)} is {finite[label].kind}"
    if len(shown) == 1:
        return f"The paper claims ε = {claimed} for this run; ε = {stated}."
    return (
        f"More than the claimed ε is {ways} in {len(more)} of {len(finite)} settings that claim a "
        f"finite one; most in {label}: {claimed} is claimed, {stated}."
    )


def _ends(curves: pandas.DataFrame) -> str:
    """Where the highest and the lowest line end."""
    last = curves.groupby("setting").tail(1).sort_values("mean")
    high = last.iloc[-1]
    low = last.iloc[0]
    if len(last) > 1:
        text = f"Highest at the end: {high['setting']} ({_short(high['mean'])}); lowest: "
        return f"{text}{low['setting']} ({_short(low['mean'])})."
    text = f"{high['setting']} ends at {_short(high['mean'])}"
    if high["runs"] > 1:
        ends = f"{_short(high['low'])} to {_short(high['high'])}"
        text += f" (95% interval {ends}, {high['runs']} runs)"
    return f"{text}."


def _over_seeds(grouping: Grouping) -> str:
    """How lines and bands are over seeds, in a sentence."""
    repeated = max(len({run.seed for run in s.started}) for s in grouping.settings)
    if repeated > 1:
        return (
            f"Line: mean over up to {repeated} seeds; band: its 95% interval (Student's t), which "
            "is wide for two or three, and ends at 0 and 1."
        )
    return "One run each: there is no spread to show."


def _written(value: float, up: bool = True) -> float:
    """An ε of three digits for a table and a tooltip; ``up``: of ``format_number``."""
    return float(format_number(value, up).replace(",", ""))


def _short(value: float) -> str:
    """Three decimals of a share, four digits of what is larger."""
    if abs(value) < 10:
        return f"{value:.3f}"
    return f"{value:,.4g}"


def _capital(score: str) -> str:
    """A score's name as a title begins."""
    return score.replace("_", " ").capitalize()


# The additive model of bins --------------------------------------------------------------------
#
# What is drawn is how far a bin moves the log-odds of the second class, as the published model has
# it. The band is what the noise alone would give, two deviations to each side of 0: a bin that lies
# inside it has told nothing.

_ROW = 14  # of a map, in pixels
_FAINT = 0.3  # how strong what lies inside the noise is drawn


@dataclass(frozen=True)
class Part:
    """One column or pair, and how far each of its bins moves the log-odds.

    Attributes:
        name: the column's, or "a × b".
        labels: of the bins, one list for each axis.
        moves: (bins of a,) or (bins of a, bins of b).
        joined: labels of a column's bins that have an order, from the least on.
    """

    name: str
    labels: list[list[str]]
    moves: NDArray[np.float64]
    joined: list[str]


def additive_figure(index: int, label: str, run: Run) -> Figure | None:
    """The model of ``run``; None unless it has two classes and its features are bins.

    ``index``: of this figure among those of the page. ``label``: whose it is.
    """
    layer = run.layer
    if layer is None or len(layer) != 2:
        return None
    features = run.config["features"]
    bins = Bins(features["schema"], features.get("crossed") or [])
    if layer.shape[1] != bins.width:
        return None
    once = 1 / math.sqrt(len(bins.columns) + len(bins.crossed))  # what a row has in a bin
    moves = (layer[1] - layer[0]) * once
    noise = (run.metrics or {}).get("model_noise")
    band = 0.0
    if noise is not None:
        band = 2 * math.sqrt(2) * float(noise) * once
    numbers: list[dict[str, Any]] = []
    panels: list[Panel] = []
    for part in _parts(bins, moves):
        numbers += _numbers(part, band)
        draw = _curve
        if part.moves.ndim > 1:
            draw = _map
        panels.append(draw(part))
    told = sum(abs(record["move"]) > band for record in numbers)
    finding = f"{told} of {len(numbers)} bins move the odds by more than the noise."
    if not band:
        finding = f"{len(numbers)} bins; the model has no noise, or nobody knows how much."
    reading = (
        "Up, and the first colour: more of the second class. Grey, and faint: what noise alone "
        "gives, two deviations. Only differences within a column say something."
    )
    columns = {"panel": "of", "bin": "bin", "other": "and", "move": "log-odds", "band": "noise ±"}
    return Figure(f"additive-{index}", label, finding, reading, panels, columns, numbers)


def _parts(bins: Bins, moves: NDArray[np.float64]) -> Iterator[Part]:
    """Columns first, then pairs."""
    labels = [[column.labels()] for column in bins.columns]
    for a, b in bins.crossed:
        labels.append([bins.columns[a].labels(), bins.columns[b].labels()])
    joined = [_joined(column) for column in bins.columns] + [[] for _ in bins.crossed]
    for (name, where), axes, order in zip(bins.parts(), labels, joined, strict=True):
        yield Part(name, axes, moves[where].reshape([len(axis) for axis in axes]), order)


def _joined(column: Column) -> list[str]:
    """Bins of numbers, but for those of unknown and outside; none of words."""
    labels = column.labels()
    if not column.values:
        return labels[: column.bins]
    if all(re.fullmatch(r"-?[0-9.]+", value) for value in column.values):
        return labels[: len(column.values)]
    return []


def _numbers(part: Part, band: float) -> Iterator[dict[str, Any]]:
    most = float(np.abs(part.moves).max()) or 1.0
    for place in np.ndindex(part.moves.shape):
        record: dict[str, Any] = {"panel": part.name, "key": "", "bin": part.labels[0][place[0]]}
        if len(place) > 1:
            record["other"] = part.labels[1][place[1]]
        move = float(part.moves[place])
        share = abs(move) / most
        if abs(move) <= band:
            share *= _FAINT
        record["move"] = float(f"{move:.4g}")
        record["share"] = float(f"{share:.3g}")
        record["band"] = float(f"{band:.4g}")
        yield record


def _curve(part: Part) -> Panel:
    """A point for each bin over the band of the noise, and a line along bins that have an order."""
    x = alt.X("bin:N", title=part.name, sort=part.labels[0])
    base = numbers_of("panel", part.name).encode(x=x)
    noise = base.transform_calculate(least="-datum.band").mark_bar(color="var(--ink)", opacity=0.15)
    noise = noise.encode(y=alt.Y("least:Q", title="log-odds"), y2="band:Q")
    tips = ["bin:N", alt.Tooltip("move:Q", title="log-odds"), alt.Tooltip("band:Q", title="noise")]
    points = base.mark_point(filled=True, size=36, color=TONES[0]).encode(y="move:Q", tooltip=tips)
    curve = base.transform_filter(alt.FieldOneOfPredicate(field="bin", oneOf=part.joined))
    curve = curve.transform_window(place="row_number()").mark_line(color=TONES[0])
    curve = curve.encode(y="move:Q", order="place:Q")
    layers = [noise, curve, points] if part.joined else [noise, points]
    return panel_of(part.name, layers, zoomed="")


def _map(part: Part) -> Panel:
    """A square for each pair of bins; what lies inside the noise is faint."""
    first, second = part.name.split(" × ")
    squares = numbers_of("panel", part.name).mark_rect()
    squares = squares.encode(
        x=alt.X("other:N", title=second, sort=part.labels[1]),
        y=alt.Y("bin:N", title=first, sort=part.labels[0]),
        color=alt.condition("datum.move > 0", alt.value(TONES[0]), alt.value(TONES[1])),
        opacity=alt.Opacity("share:Q", legend=None, scale=alt.Scale(domain=[0, 1], range=[0, 1])),
        tooltip=["bin:N", "other:N", alt.Tooltip("move:Q", title="log-odds"), "band:Q"],
    )
    return panel_of(part.name, [squares], _ROW * len(part.labels[0]), zoomed="")
