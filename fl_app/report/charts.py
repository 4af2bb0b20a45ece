"""A chart as plain values, and its drawing as SVG that a browser can stretch.

The plot area is as wide as its box: places along x are percentages, lines lie in a nested SVG that
stretches without stretching their strokes, and texts and marks keep their size. So one drawing
serves a phone, a screen and paper, and needs no script to appear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from fl_app.report.scales import Linear, Log, Tick

HEIGHT = 260
ROW = 38  # pixels, in a chart whose lines are rows
_LABEL_GAP = 14
_STRETCH = 1000  # x units of the nested, stretching SVG
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "down", "plus", "star")
COLOURS = 8
DASHES = 6


@dataclass(frozen=True)
class Look:
    """Colour (None: a reference), dashes and mark of a line; the last two do without colour."""

    colour: int | None = 0
    dash: int = 0
    shape: int = 0

    @property
    def css(self) -> str:
        """The classes that the style sheet knows."""
        colour = "reference" if self.colour is None else f"c{self.colour % COLOURS}"
        return f"{colour} d{self.dash % DASHES}"


@dataclass(frozen=True)
class Point:
    """``x``, ``y`` in the chart's units; ``says``: the tooltip; ``low``, ``high``: spread of y.

    ``kind``: ``dot`` is filled, ``ring`` hollow, ``none`` part of a line only. ``size`` scales it.
    """

    x: float
    y: float
    says: str
    kind: str = "none"
    low: float | None = None
    high: float | None = None
    size: float = 1.0


@dataclass(frozen=True)
class Line:
    """Points of one setting (``key``) or of something to compare with (``key=""``)."""

    key: str
    name: str
    look: Look
    points: Sequence[Point]
    joined: bool = True
    end_label: str = ""


@dataclass(frozen=True)
class Chart:
    """One pair of axes. ``rows``: instead of a y axis, these names, one line of marks each."""

    title: str
    alt: str
    x_label: str
    y_label: str
    x: Linear | Log
    y: Linear | Log
    lines: Sequence[Line]
    rows: Sequence[tuple[str, str]] = field(default=())

    @property
    def height(self) -> int:
        """Pixels of the plot area."""
        return ROW * len(self.rows) if self.rows else HEIGHT

    def tooltips(self) -> list[dict[str, Any]]:
        """For the page's script: each line's places (% across, pixels down) and texts."""
        return [
            {
                "s": line.key,
                "n": line.name,
                "p": [[*self._at(point.x, point.y), point.says] for point in line.points],
            }
            for line in self.lines
            if line.points
        ]

    def svg(self) -> Markup:
        """The drawing; its size comes from the style sheet, its text alternative from ``alt``."""
        parts = [self._grid(), *(self._line(line) for line in self.lines), self._end_labels()]
        return Markup(
            '<svg class="chart" role="img" aria-label="{}" width="100%" height="{}" data-x="{}" '
            'data-y="{}">{}</svg>'
        ).format(self.alt, self.height, self.x.words, self.y.words, Markup("").join(parts))

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return round(100 * self.x.place(x), 2), round(self.height * (1 - self.y.place(y)), 1)

    def _grid(self) -> Markup:
        down = [_grid_line(tick, self.height) for tick in self.x.ticks]
        if self.rows:
            across = [
                Markup(
                    '<g data-s="{}"><line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>'
                    '<text class="row" x="0" y="{t}">{}</text></g>'
                ).format(key, name, y=ROW * i + ROW - 10, t=ROW * i + 13)
                for i, (name, key) in enumerate(self.rows)
            ]
        else:
            across = [
                Markup(
                    '<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>'
                    '<text class="tick" x="-8" y="{t}" text-anchor="end">{}</text>'
                ).format(tick.label, y=round(y, 1), t=round(y + 4, 1))
                for tick in self.y.ticks
                for y in [self.height * (1 - tick.place)]
            ]
        if isinstance(self.x, Log) and self.x.has_infinity:
            gap = round(100 * self.x.gap, 2)
            down.append(
                Markup('<line class="gap" x1="{x}%" x2="{x}%" y1="0" y2="{}"/>').format(
                    self.height, x=gap
                )
            )
        return Markup("").join([*down, *across])

    def _line(self, line: Line) -> Markup:
        stroke: list[Markup] = []
        if line.joined and len(line.points) > 1:
            spread = [p for p in line.points if p.low is not None and p.high is not None]
            if any(p.low != p.high for p in spread):
                upper = [self._stretched(p.x, p.high) for p in spread]
                lower = [self._stretched(p.x, p.low) for p in reversed(spread)]
                stroke.append(
                    Markup('<path class="band" d="M{}Z"/>').format("L".join(upper + lower))
                )
            path = "L".join(self._stretched(p.x, p.y) for p in line.points)
            stroke.append(Markup('<path class="line" d="M{}"/>').format(path))
        lines = Markup(
            '<svg width="100%" height="{h}" viewBox="0 0 {w} {h}" preserveAspectRatio="none">'
            "{}</svg>"
        ).format(Markup("").join(stroke), h=self.height, w=_STRETCH)
        marks = [self._mark(line, p) for p in line.points if p.kind != "none"]
        return Markup('<g class="{}" data-s="{}">{}{}</g>').format(
            line.look.css,
            line.key,
            lines if stroke else "",
            Markup("").join(marks),
        )

    def _mark(self, line: Line, point: Point) -> Markup:
        x, y = self._at(point.x, point.y)
        bar = Markup("")
        if not line.joined and point.low is not None and point.high is not None:
            top, bottom = self._at(point.x, point.high)[1], self._at(point.x, point.low)[1]
            if bottom - top > 1:
                bar = Markup('<line class="bar" x1="{x}%" x2="{x}%" y1="{}" y2="{}"/>').format(
                    top, bottom, x=x
                )
        return bar + mark(line.look.shape, point.kind, f"{x}%", y, point.size)

    def _end_labels(self) -> Markup:
        """Names at the right end of the lines, pushed apart where they would overlap."""
        wanted = sorted(
            (
                (self._at(line.points[-1].x, line.points[-1].y)[1], line)
                for line in self._labelled()
            ),
            key=lambda placed: placed[0],
        )
        places = spread_out([y for y, _ in wanted], _LABEL_GAP, self.height)
        return Markup("").join(
            Markup('<text class="end" x="{}%" dx="8" y="{}" data-s="{}">{}</text>').format(
                self._at(line.points[-1].x, 0)[0], round(y + 4, 1), line.key, line.end_label
            )
            for y, (_, line) in zip(places, wanted, strict=True)
        )

    def _labelled(self) -> list[Line]:
        return [line for line in self.lines if line.end_label and line.points]

    def _stretched(self, x: float, y: float | None) -> str:
        across, down = self._at(x, y or 0.0)
        return f"{across * _STRETCH / 100:.5g} {down:.5g}"


def mark(shape: int, kind: str, x: float | str, y: float, size: float = 1.0) -> Markup:
    """One mark with its centre at (x, y): a shape that the page defines, or a disc of any size."""
    if size != 1.0:
        return Markup('<circle class="{}" cx="{}" cy="{}" r="{}"/>').format(
            kind, x, y, round(5 * size, 1)
        )
    name = SHAPES[shape % len(SHAPES)]
    if kind == "ring":  # larger, so that it shows around a filled mark in the same place
        return Markup(
            '<svg class="ring" x="{}" y="{}" overflow="visible">'
            '<use href="#m-{}" transform="scale(1.55)"/></svg>'
        ).format(x, y, name)
    return Markup('<use class="{}" href="#m-{}" x="{}" y="{}"/>').format(kind, name, x, y)


def spread_out(wanted: Sequence[float], gap: float, room: float) -> list[float]:
    """``wanted`` (ascending) moved just enough to be ``gap`` apart and within ``room``."""
    places: list[float] = []
    for value in wanted:
        places.append(max(value, places[-1] + gap) if places else value)
    limit = room
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], limit)
        limit = places[index] - gap
    return places


def _grid_line(tick: Tick, height: int) -> Markup:
    return Markup(
        '<line class="grid" x1="{x}%" x2="{x}%" y1="0" y2="{h}"/>'
        '<text class="tick" x="{x}%" y="{t}" text-anchor="middle">{}</text>'
    ).format(tick.label, x=round(100 * tick.place, 2), h=height, t=height + 18)
