"""The report's figures: each asks a question of the settings, and answers it in one sentence.

``charts`` holds what they are built of.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import altair as alt
import numpy as np
import pandas

from fl_app.api import ConfigError, PartitionCounts, format_epsilon, nearest, short_name
from murmur.format import format_number
from murmur_report.charts import (
    FEW_ROUNDS,
    KIND_SHAPES,
    MARKED_LABEL,
    MAX_CLIENTS,
    ROW,
    SPREAD,
    TONES,
    WITHOUT_NOISE,
    Axis,
    Figure,
    about_levels,
    as_records,
    byte_count,
    in_parts,
    into_panels,
    level_lines,
    line_channels,
    line_panels,
    numbers_of,
    panel_marks,
    panel_of,
    places,
    score_axis,
    thin,
    thinned,
    tooltips,
    with_levels,
)
from murmur_report.settings import Grouping, Setting, as_number
from murmur_report.tables import Comparison


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
    points = in_parts(points.assign(index=places(points["line"], points["family"])))
    points["place"] = points["x"].map(axis.place)
    if over == "privacy.epsilon":
        points["x"] = points["x"].map(_written)
    name = short_name(over, keys)
    scale = axis.x({"privacy.epsilon": "ε of the whole run"}.get(over, over))
    noisy = points[points["level"].isna()]
    best = noisy.loc[noisy["mean"].idxmax()]
    finding = f"Highest: {best['line']} with {_short(best['mean'])} at {name} = {best['x']:g}."
    caption = f"{_over_seeds(grouping)} Compare lines of one panel only: they have one promise."
    if points["line"].nunique() > 1:
        caption += f" Dotted: the best of all shown settings at this {name} or less."
    title = f"{_capital(score)} over {name}"
    if by is not None:
        title += f" by {short_name(by, keys)}"
    points = with_levels(points, grouping, score)
    caption += about_levels(points)
    panels = line_panels(points, grouping, scale, "x", score, is_frontier=True)
    columns = {"setting": "setting", "promise": "promise", "x": over, "mean": score, **SPREAD}
    return Figure("swept", title, finding, caption, panels, columns, as_records(points, columns))


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
    points = in_parts(points.assign(panel=points["promise"], line=points["key"], level=None))
    points["line"] = points["family"]
    free = [setting.key for setting in shown if setting.is_without_noise]
    levels = grouping.finals(score)
    levels = levels[levels["key"].isin(free)].assign(level=WITHOUT_NOISE)
    levels = levels.assign(kind=WITHOUT_NOISE, epsilon=math.inf)
    levels = levels.merge(points[["key", "panel", "line"]].drop_duplicates(), on="key")
    points = with_levels(pandas.concat([points, levels], ignore_index=True), grouping, score)
    y = score_axis(points, score)
    scale = alt.Scale(domain=list(KIND_SHAPES), range=list(KIND_SHAPES.values()))
    marks_of_kinds = alt.Shape("kind:N", scale=scale, legend=None)
    panels = []
    for title, own in points.groupby("panel", sort=False):
        looks = line_channels(own, grouping)
        base = panel_marks(title).encode(x=axis.x("ε of the whole run"), y=y)
        base = base.encode(
            color=looks["color"], tooltip=tooltips("setting", "kind", "epsilon", score)
        )
        claim = base.transform_filter("indexof(datum.kind, 'measured') < 0")
        canaries = base.transform_filter("indexof(datum.kind, 'measured') == 0")
        stated = base.transform_filter(f"indexof({list(KIND_SHAPES)}, datum.kind) >= 0")
        claimed = base.transform_filter("datum.kind == 'claimed'")
        measured = base.transform_filter("datum.kind == 'measured'")
        layers = [
            claim.mark_line(strokeWidth=1.5).encode(detail="key:N"),
            canaries.mark_line(strokeWidth=1.5).encode(detail="key:N"),
            stated.mark_rule(clip=True).encode(y=score_axis(points, score, "low"), y2="high:Q"),
            stated.mark_point(filled=True, size=70, opacity=1).encode(shape=marks_of_kinds),
            claimed.mark_point(filled=False, size=150, opacity=1),
            measured.mark_point(filled=True, size=25, opacity=1),
            *level_lines(title, y, looks["color"]),
        ]
        panels.append(panel_of(title, layers))
    caption = (
        "Hollow: the ε that the paper claims; filled: the ε that is proven for what left the "
        "clients against the adversary named; a line joins the two, and one within the other says "
        "that they are equal; ∞: unprotected. Upright: 95% interval of the "
        "mean over seeds (Student's t)."
    )
    caption += about_levels(points)
    if any(setting.kind == "void" for setting in shown):
        caption += " A cross: void, not to be relied on; the privacy statement says why."
    if any(setting.kind == "assumed" for setting in shown):
        caption += " A diamond: not proven, but under all assumptions of the privacy statement."
    if any(setting.canaries for setting in shown):
        caption += (
            " Small discs: what canary clients measured, from the least to the most it may be."
        )
    columns = {"setting": "setting", "promise": "promise", "kind": "which ε", "epsilon": "ε"}
    columns |= {"mean": score, **SPREAD}
    title = f"{_capital(score)} against ε, claimed and proven"
    return Figure(
        "epsilon", title, _gap(shown), caption, panels, columns, as_records(points, columns)
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
    points = in_parts(into_panels(thinned(curves)))
    caption = _over_seeds(grouping)
    for comparison in references:
        name = comparison.about["name"]
        beside = points[points["key"].isin([setting.key for setting in comparison.settings])]
        accuracy = {n: value for n, value in comparison.accuracy.items() if n <= last}
        if score == "accuracy" and accuracy and len(beside):
            found = {"round": list(accuracy), "mean": list(accuracy.values())}
            lines = pandas.DataFrame(found).merge(beside[["panel"]].drop_duplicates(), how="cross")
            same = {"key": "", "family": "", "index": 1, "line": name, "setting": name}
            points = pandas.concat([points, lines.assign(**same)], ignore_index=True)
            caption += f" Dashed and dark: {name}."
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
        caption += " Of single rounds: a dot for each setting, on its 95% interval."
    points = with_levels(points, grouping, score)
    caption += about_levels(points)
    panels = line_panels(points, grouping, x, "round", score)
    columns = {"setting": "setting", "round": "round", "mean": score, **SPREAD}
    title = f"{_capital(score)} over rounds"
    return Figure(
        f"rounds-{score}", title, finding, caption, panels, columns, as_records(points, columns)
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
    points = in_parts(into_panels(thinned(curves)))
    x = Axis(points["sent"]).x("sent so far by all clients", "sent", "~s", "B")
    sent = curves.groupby("setting")["sent"].max().sort_values()
    finding = f"Clients together sent {byte_count(sent.iloc[0])}."
    if len(sent) > 1:
        finding = f"Least was sent with {sent.index[0]} ({byte_count(sent.iloc[0])}), "
        finding += f"most with {sent.index[-1]} ({byte_count(sent.iloc[-1])})."
    points = with_levels(points, grouping, score)
    caption = f"Further left is cheaper. {_over_seeds(grouping)}{about_levels(points)}"
    panels = line_panels(points, grouping, x, "sent", score)
    columns = {"setting": "setting", "round": "round", "sent": "bytes sent", "mean": score}
    columns |= SPREAD
    title = f"{_capital(score)} against bytes sent by clients"
    return Figure("bytes", title, finding, caption, panels, columns, as_records(points, columns))


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
        y = alt.Y("setting:N", title=None, sort=None, axis=alt.Axis(labelExpr=MARKED_LABEL))
        size = alt.Size("share:Q", legend=None, scale=alt.Scale(domain=[0, 1], range=[30, 400]))
        discs = (
            numbers_of("panel", title)
            .mark_circle(opacity=0.6)
            .encode(
                x=axis.x("proven ε of a client over the run"),
                y=y,
                size=size,
                color=line_channels(own, grouping)["color"].legend(None),
                tooltip=tooltips("setting", "epsilon", "clients"),
            )
        )
        panels.append(panel_of(title, [discs], ROW * own["key"].nunique(), zoomed="x"))
    counts = points.groupby("setting", sort=False)["epsilon"].count()
    finding = "Within every setting all clients have spent the same."
    if counts.max() > 1:
        finding = f"Clients differ in what they have spent: most in {counts.idxmax()}."
    caption = "One disc for each ε that clients have spent; its area says how many, over all seeds."
    title = "Proven ε of each client"
    return Figure("spend", title, finding, caption, panels, columns, as_records(points, columns))


def partition_figure(index: int, label: str, partition: PartitionCounts, where: str) -> Figure:
    """Who holds how many examples, and of which classes; of many clients an even choice.

    Args:
        index: of this partition among those of the page.
        label: whose it is; the figure's title.
        partition: examples by client and class.
        where: data set and partition in words.
    """
    table = np.array(partition.counts)
    drawn = thin(range(len(table)), MAX_CLIENTS)
    names = [partition.shown[row] for row in drawn]
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
    finding = f"{where}, {partition.clients:,} clients, {partition.examples:,} examples."
    caption = "A column is a client: above, how much it holds; below, of which classes."
    if len(drawn) < partition.clients:
        caption += f" An even choice of {len(drawn)} clients is drawn."
    columns = {"client": "client", "class": "class", "examples": "examples", "share": "share"}
    return Figure(
        f"partition-{index}",
        label,
        finding,
        caption,
        panels,
        columns,
        as_records(cells, [*columns, "held"]),
    )


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
    claimed = format_epsilon(finite[label].claimed)
    stated = f"{format_epsilon(finite[label].stated)} is {finite[label].kind}"
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
