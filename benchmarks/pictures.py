"""Pictures of docs and research, drawn in one way: one size of panel, one mark for each line.

A point is the mean over seeds and its bar one standard deviation, as in the tables beside them;
a band is least to most. What has one seed has neither.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH, HEIGHT, DPI = 5.0, 3.2, 110
MARKS = "os^Dv<>"


def canvas(
    panels: int = 1, width: float = WIDTH, height: float = HEIGHT
) -> tuple[Figure, list[Axes]]:
    """A figure with ``panels`` panels beside each other; a panel's size in inches."""
    figure = Figure(figsize=(width * panels, height), dpi=DPI, layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for one in axes:
        one.grid(alpha=0.3)
    return figure, list(axes)


def curve(
    axes: Axes,
    values: Sequence[str],
    samples: Sequence[Sequence[float]],
    label: str | None = None,
) -> None:
    """A line through the means of ``samples``, one sequence over seeds for each of ``values``.

    Values that are numbers stand where they belong; if one of them is none (``inf``, ``no
    noise``), all stand at equal distances.
    """
    places = _places(values)
    means = [statistics.mean(found) for found in samples]
    mark = MARKS[len(axes.containers) % len(MARKS)]
    axes.errorbar(places, means, _deviations(samples), marker=mark, ms=5, capsize=3, label=label)
    if places != [_number(value) for value in values]:
        axes.set_xticks(places, ["∞" if value == "inf" else value for value in values])


def band(
    axes: Axes,
    rounds: Sequence[int],
    samples: Sequence[Sequence[float]],
    label: str | None = None,
) -> None:
    """Mean over seeds after each round, and least to most around it."""
    means = [statistics.mean(found) for found in samples]
    [line] = axes.plot(rounds, means, label=label, lw=1.4)
    low, high = [min(found) for found in samples], [max(found) for found in samples]
    axes.fill_between(rounds, low, high, color=line.get_color(), alpha=0.2, lw=0)


def rows(axes: Axes, columns: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Named rows, the first on top, with a mark for each column: its name -> row -> samples."""
    names = list(dict.fromkeys(name for samples in columns.values() for name in samples))
    for index, (column, samples) in enumerate(columns.items()):
        # Marks of one row stand a little below each other, or one would hide the other.
        shift = 0.3 * (index - (len(columns) - 1) / 2)
        places = [names.index(name) + shift for name in samples]
        means = [statistics.mean(found) for found in samples.values()]
        deviations = _deviations(list(samples.values()))
        mark = MARKS[index % len(MARKS)]
        label = column if len(columns) > 1 else None
        axes.errorbar(means, places, xerr=deviations, fmt=mark, ms=5, capsize=3, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def save(figure: Figure, picture: Path) -> None:
    """Write ``picture``, with a legend where lines have names, and say so."""
    for axes in figure.axes:
        if axes.get_legend_handles_labels()[1] and axes.get_legend() is None:
            axes.legend(fontsize=8)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, metadata={"Description": json.dumps(drawn(figure))})
    print(f"\npicture: {picture}")


def drawn(figure: Figure) -> list[list[list[list[float]]]]:
    """Panel -> line -> points [x, y] of a picture, to four decimals, for who compares it."""
    found = []
    for axes in figure.axes:
        lines = [np.asarray(line.get_xydata(), float).round(4).tolist() for line in axes.lines]
        found.append(lines)
    return found


def _places(values: Sequence[str]) -> list[float]:
    numbers = [_number(value) for value in values]
    finite = [number for number in numbers if number is not None]
    return finite if len(finite) == len(numbers) else [float(i) for i in range(len(values))]


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return None if number == float("inf") else number


def _deviations(samples: Sequence[Sequence[float]]) -> list[float] | None:
    if all(len(found) == 1 for found in samples):
        return None
    return [statistics.stdev(found) if len(found) > 1 else 0.0 for found in samples]
