"""Draws the additive model of a run whose features are a table's bins: a curve for each column.

    python -m research.owners.additive RUN FOLDER

writes it as SVG, PDF and PNG. What is drawn is how far a bin moves the log-odds of the second
class, as the published model has it. The band is what the noise alone would give, two deviations to
each side of 0: a bin that lies inside it has told nothing.
"""

import argparse
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from fl_app.api import Run, load_run
from fl_app.run.model_folder import weights_file
from murmur.learning.features.bins import Bins, Column
from murmur_report.charts import TONES, Figure, Panel, numbers_of, panel_of
from murmur_report.export import as_files

_ROW = 14  # of a map, in pixels
_FAINT = 0.3  # how strong what lies inside the noise is drawn


@dataclass(frozen=True)
class Term:
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


def linear_layer(folder: Path) -> NDArray[np.float32]:
    """Returns the one matrix (classes, bins) of a run's linear model.

    Raises:
        ValueError: it has several, or none.
    """
    matrices = [w for w in load_file(weights_file(folder)).values() if w.ndim == 2]
    if len(matrices) != 1:
        raise ValueError(f"{folder}: has {len(matrices)} matrices, and a linear model has one")
    return matrices[0]


def additive_figure(run: Run, layer: NDArray[np.float32]) -> Figure:
    """Draws ``layer`` (2, bins), the linear model of ``run``.

    Raises:
        ValueError: it has other classes than two, or its features are no bins.
    """
    features = run.config.get("features", {})
    if not str(features.get("_target_", "")).endswith(".bins"):
        raise ValueError(f"{run.name}: its features are no bins")
    bins = Bins(features["schema"], features.get("crossed") or [])
    if layer.shape != (2, bins.width):
        raise ValueError(f"{run.name}: its model is {layer.shape}, not (2, {bins.width})")
    once = 1 / math.sqrt(len(bins.columns) + len(bins.crossed))  # what a row has in a bin
    moves = (layer[1] - layer[0]) * once
    noise = (run.metrics or {}).get("model_noise")
    band = 0.0
    if noise is not None:
        band = 2 * math.sqrt(2) * float(noise) * once
    numbers: list[dict[str, Any]] = []
    panels: list[Panel] = []
    for term in _terms(bins, moves):
        numbers += _numbers(term, band)
        draw = _curve
        if term.moves.ndim > 1:
            draw = _map
        panels.append(draw(term))
    told = sum(abs(record["move"]) > band for record in numbers)
    finding = f"{told} of {len(numbers)} bins move the odds by more than the noise."
    if not band:
        finding = f"{len(numbers)} bins; the model has no noise, or nobody knows how much."
    caption = (
        "Up, and the first colour: more of the second class. Grey, and faint: what noise alone "
        "gives, two deviations. Only differences within a column say something."
    )
    columns = {"panel": "of", "bin": "bin", "other": "and", "move": "log-odds", "band": "noise ±"}
    return Figure("additive", run.name, finding, caption, panels, columns, numbers)


def _terms(bins: Bins, moves: NDArray[np.float64]) -> Iterator[Term]:
    """Columns first, then pairs."""
    labels = [[column.labels()] for column in bins.columns]
    for a, b in bins.crossed:
        labels.append([bins.columns[a].labels(), bins.columns[b].labels()])
    joined = [_joined(column) for column in bins.columns] + [[] for _ in bins.crossed]
    for (name, where), axes, order in zip(bins.parts(), labels, joined, strict=True):
        yield Term(name, axes, moves[where].reshape([len(axis) for axis in axes]), order)


def _joined(column: Column) -> list[str]:
    """Bins of numbers, but for those of unknown and outside; none of words."""
    labels = column.labels()
    if not column.values:
        return labels[: column.bins]
    if all(re.fullmatch(r"-?[0-9.]+", value) for value in column.values):
        return labels[: len(column.values)]
    return []


def _numbers(term: Term, band: float) -> Iterator[dict[str, Any]]:
    most = float(np.abs(term.moves).max()) or 1.0
    for place in np.ndindex(term.moves.shape):
        record: dict[str, Any] = {"panel": term.name, "key": "", "bin": term.labels[0][place[0]]}
        if len(place) > 1:
            record["other"] = term.labels[1][place[1]]
        move = float(term.moves[place])
        share = abs(move) / most
        if abs(move) <= band:
            share *= _FAINT
        record["move"] = float(f"{move:.4g}")
        record["share"] = float(f"{share:.3g}")
        record["band"] = float(f"{band:.4g}")
        yield record


def _curve(term: Term) -> Panel:
    """A point for each bin over the band of the noise, and a line along bins that have an order."""
    x = alt.X("bin:N", title=term.name, sort=term.labels[0])
    base = numbers_of("panel", term.name).encode(x=x)
    noise = base.transform_calculate(least="-datum.band").mark_bar(color="var(--ink)", opacity=0.15)
    noise = noise.encode(y=alt.Y("least:Q", title="log-odds"), y2="band:Q")
    tips = ["bin:N", alt.Tooltip("move:Q", title="log-odds"), alt.Tooltip("band:Q", title="noise")]
    points = base.mark_point(filled=True, size=36, color=TONES[0]).encode(y="move:Q", tooltip=tips)
    curve = base.transform_filter(alt.FieldOneOfPredicate(field="bin", oneOf=term.joined))
    curve = curve.transform_window(place="row_number()").mark_line(color=TONES[0])
    curve = curve.encode(y="move:Q", order="place:Q")
    layers = [noise, curve, points] if term.joined else [noise, points]
    return panel_of(term.name, layers, zoomed="")


def _map(term: Term) -> Panel:
    """A square for each pair of bins; what lies inside the noise is faint."""
    first, second = term.name.split(" × ")
    squares = numbers_of("panel", term.name).mark_rect()
    squares = squares.encode(
        x=alt.X("other:N", title=second, sort=term.labels[1]),
        y=alt.Y("bin:N", title=first, sort=term.labels[0]),
        color=alt.condition("datum.move > 0", alt.value(TONES[0]), alt.value(TONES[1])),
        opacity=alt.Opacity("share:Q", legend=None, scale=alt.Scale(domain=[0, 1], range=[0, 1])),
        tooltip=["bin:N", "other:N", alt.Tooltip("move:Q", title="log-odds"), "band:Q"],
    )
    return panel_of(term.name, [squares], _ROW * len(term.labels[0]), zoomed="")


def main() -> None:
    """Writes the pictures of the run that the command names."""
    parser = argparse.ArgumentParser(description="Draw the additive model of a run.")
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    figure = additive_figure(load_run(options.run), linear_layer(options.run))
    options.folder.mkdir(parents=True, exist_ok=True)
    for ending, content in as_files(figure).items():
        (options.folder / f"additive.{ending}").write_bytes(content)


if __name__ == "__main__":
    main()
