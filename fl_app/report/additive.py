"""The fitted additive model of a run on ``features=bins``: a curve a column, a map a pair.

What is drawn is how far a bin moves the log-odds of the second class, as the published model has
it. The band is what the noise alone would give, two deviations to each side of 0: a bin that lies
inside it has told nothing.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from fl_app.report.figures import TONES, Figure, Panel, numbers_of, panel_of
from fl_app.report.reading import Run
from murmur.learning.features.bins import Bins, Column

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
