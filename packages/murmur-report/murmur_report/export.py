"""Figures that stand alone: Vega-Lite with its numbers and colours in it, and SVG, PDF and PNG."""

import json
import math
import re
import textwrap
from typing import Any

import vl_convert

from murmur_report.charts import CONFIG, LIGHT, Figure, Panel
from murmur_report.settings import FROM_RAISED, RAISED

WIDTH = 460  # of one that stands alone
COLUMN = 238  # of a paper with two columns, in points: 84 mm
_SMALLER = 0.6  # a panel's height there
_RAISED_POWER = re.compile(f"10([{RAISED}]+)")


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
