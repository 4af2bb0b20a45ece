"""Building blocks of the report's figures: panels, axes, colours, and the records that they draw.

A figure keeps its numbers once, as records; its charts read them under the name ``numbers``, and
the page shows them as a table and saves them as CSV. A record's ``panel`` says in which chart it is
drawn, its ``key`` whose it is: charts leave out the keys in their parameter ``hidden``. Colours are
variables of the page's style sheet, so that light, dark and paper need no second drawing;
``export`` puts values in their place.

Colour names the algorithm, dashes and marks the setting, so nothing depends on colour vision; a
setting has the same name, colour and dashes in every figure. One panel has one promise (unit,
neighbours, threat and δ): figures of other promises cannot be compared, and have panels of their
own on the same axes. A panel has eight lines at most, beside those of chance and of algorithms
without noise.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import altair as alt
import pandas

from murmur_report.settings import AT_CHANCE, VOID, Grouping

ASSETS = Path(__file__).with_name("assets")
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
KIND_SHAPES = {"proven": "circle", "assumed": "diamond", "void": "cross"}  # what a stated ε is
HEIGHT = 260  # of a plot, in pixels
_BAND = 0.15  # how strong the band of one line of three is; of more they hide each other
ROW = 34  # of a row, where settings are rows
MAX_ROUNDS = 60  # drawn of a line
MAX_LINES = 8  # in one panel; more stand in further ones
MAX_CLIENTS = 120  # columns of a partition
DIVERGED = 10  # times the median loss
FEW_ROUNDS = 5  # so many have a mark each on the axis; Vega would also mark halves
MARKED_LABEL = (  # a name's marks stand in a line of their own
    f"split(replace(replace(datum.label, ' ({AT_CHANCE}', '\\n({AT_CHANCE}'), ' ({VOID}', "
    f"'\\n({VOID}'), '\\n')"
)
_QUIET = "var(--soft)"  # of words in a chart
_APART = 0.07  # of an axis, so that two lines of words do not touch
_IS_NO_LEVEL = "!isValid(datum.level)"
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
        caption: how to read the marks, and what they are over.
        panels: in their order.
        columns: fields of ``numbers`` that a reader wants as a table -> their headings.
        numbers: a record for each mark; ∞ is written as the sign.
    """

    id: str
    title: str
    finding: str
    caption: str
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


def line_panels(
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
    y = score_axis(points, score)
    panels = []
    for title, own in points.groupby("panel", sort=False):
        looks = line_channels(own, grouping)
        if read == "round" and own["round"].max() <= 1:
            panels.append(_dots(title, own, y, looks, score))
            continue
        stroke = {name: looks[name] for name in ("color", "strokeDash")}
        marks = {name: looks[name] for name in ("color", "shape")}
        base = panel_marks(title).encode(x=x, y=y)
        low = score_axis(points, score, "low")
        band = base.mark_area(opacity=_BAND / max(1, own["key"].nunique() - 2), clip=True)
        dots = base.mark_point(filled=True, size=35, opacity=1)
        layers = [
            band.encode(y=low, y2="high:Q", color=looks["color"]),
            base.mark_line(strokeWidth=2).encode(**stroke),
            dots.encode(tooltip=tooltips("setting", read, score), **marks),
        ]
        promise = own["promise"].iloc[0]
        alike = (points["promise"] == promise) & points["level"].isna()
        if is_frontier and points["line"][alike].nunique() > 1:
            best = (
                numbers_of("promise", promise)
                .transform_filter(_IS_NO_LEVEL)
                .encode(x=x, y=y)
                .transform_window(mean="max(mean)", sort=[alt.SortField("place")], frame=[None, 0])
            )
            steps = best.mark_line(interpolate="step-after", strokeDash=[1, 3], color=TONES[-1])
            layers.append(steps)
        panels.append(panel_of(title, [*layers, *level_lines(title, y, looks["color"])]))
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
    rows = alt.Y("setting:N", title=None, sort=None, axis=alt.Axis(labelExpr=MARKED_LABEL))
    base = panel_marks(title).encode(y=rows, color=looks["color"].legend(None))
    dots = base.encode(x=x, tooltip=tooltips("setting", "round", score))
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


def panel_marks(title: str) -> alt.Chart:
    """The numbers of a panel without the levels that are lines across it."""
    return numbers_of("panel", title).transform_filter(_IS_NO_LEVEL)


def level_lines(title: str, y: alt.Y, color: alt.Color) -> list[alt.Chart]:
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


def with_levels(points: pandas.DataFrame, grouping: Grouping, score: str) -> pandas.DataFrame:
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


def about_levels(points: pandas.DataFrame) -> str:
    """How to read the lines across panels, in a sentence; "" where there are none."""
    found = {CHANCE, WITHOUT_NOISE} & set(points["level"].dropna())
    said = {
        CHANCE: "chance (always naming the most frequent class)",
        WITHOUT_NOISE: "what an algorithm reaches without noise",
    }
    if not found:
        return ""
    return f" Dotted across: {' and '.join(said[level] for level in said if level in found)}."


def places(lines: pandas.Series, families: pandas.Series) -> pandas.Series:
    """The place of each line among its algorithm's."""
    return lines.groupby(families).transform(lambda own: pandas.factorize(own)[0])


def line_channels(own: pandas.DataFrame, grouping: Grouping) -> dict[str, Any]:
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
    legend: Any = alt.Legend(labelExpr=MARKED_LABEL)
    if len(lines) == 1:
        legend = None
    elif lines["line"].str.len().max() > 18:
        legend = alt.Legend(columns=1, labelExpr=MARKED_LABEL)
    channels = {"color": alt.Color, "strokeDash": alt.StrokeDash, "shape": alt.Shape}
    names = list(lines["line"])
    field = "setting" if _are_settings(own) else "line"
    return {
        name: channel(f"{field}:N", legend=legend).scale(domain=names, range=ranges[name])
        for name, channel in channels.items()
    }


def _are_settings(points: pandas.DataFrame) -> bool:
    """Returns whether each line is a setting, so that records need no second name."""
    return bool((points["line"] == points["setting"]).all())


def score_axis(points: pandas.DataFrame, score: str, field: str = "mean") -> alt.Y:
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


def tooltips(setting: str, *fields: str) -> list[alt.Tooltip]:
    """Returns the tooltips of a mark.

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


def into_panels(curves: pandas.DataFrame) -> pandas.DataFrame:
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


def in_parts(points: pandas.DataFrame) -> pandas.DataFrame:
    """With panels of eight lines at most: more of them stand in further parts."""
    number = places(points["line"], points["panel"])
    part = (number // MAX_LINES + 1).astype(str)
    panel = points["panel"].where(number < MAX_LINES, points["panel"] + ", part " + part)
    return points.assign(panel=panel)


def thinned(curves: pandas.DataFrame) -> pandas.DataFrame:
    """At most about 60 rounds of each line, with its last one, whichever that is."""
    last = curves.groupby("key")["round"].transform("max")
    return curves[curves["round"].isin(thin(set(curves["round"]))) | (curves["round"] == last)]


def thin(numbers: Iterable[int], most: int = MAX_ROUNDS) -> list[int]:
    """At most about ``most`` of ``numbers``, evenly, with the first and the last; ascending."""
    ordered = sorted(numbers)
    kept = ordered[:: max(1, math.ceil(len(ordered) / most))]
    if ordered and kept[-1] != ordered[-1]:
        kept.append(ordered[-1])
    return kept


def as_records(points: pandas.DataFrame, columns: Iterable[str]) -> list[dict[str, Any]]:
    """For JSON: what is read or drawn, with numbers as ``_six_digits``."""
    drawn = {*columns, "key", "panel", "line", "place", "share", "level", "shown"}
    if "line" in points and _are_settings(points):
        drawn.discard("line")
    kept = points[[name for name in points if name in drawn]]
    return [
        {name: _six_digits(value) for name, value in line.items() if not pandas.isna(value)}
        for line in kept.to_dict("records")
    ]


def _six_digits(value: Any) -> Any:
    """A number with six digits, more than shows; ∞ as a sign, which JSON has not; a text as is."""
    if value == math.inf:
        return "∞"
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value


def byte_count(value: float) -> str:
    """Bytes in decimal units, to three digits."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= size * 0.9995:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} B"
