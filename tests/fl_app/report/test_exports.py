"""What the page shows, every export shows: pictures and tables are read back and counted."""

import csv
import json
import re
from collections import Counter
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import vl_convert

from fl_app.cli import main
from fl_app.report import figures, page
from fl_app.report.reading import read
from fl_app.report.settings import group
from tests.fl_app.report.folders import write_run

SVG = "{http://www.w3.org/2000/svg}"
FIGURES = {
    "swept": lambda sweep: figures.swept_figure(sweep, "accuracy"),
    "epsilon": lambda sweep: figures.epsilon_figure(sweep, "accuracy"),
    "rounds": lambda sweep: figures.rounds_figure(sweep, "accuracy"),
    "bytes": lambda sweep: figures.bytes_figure(sweep, "accuracy"),
    "spend": figures.spend_figure,
    "partition": lambda sweep: page._partitions(sweep)[0],
}


@pytest.fixture
def sweep(sweep_folder):
    return group(read(sweep_folder).runs)


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def marks(svg: str) -> Counter[str]:
    """Symbols, bars and rules of a picture, and points of its lines and bands, by kind of mark."""
    found: Counter[str] = Counter()
    for one in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        kind, *roles = one.get("class", "").split()[:2] or [""]
        if roles == ["role-mark"]:
            for drawn in one:
                points = re.findall("[ML]", drawn.get("d", ""))
                is_joined = kind in ("mark-line", "mark-area")
                found[kind] += len(points) if is_joined else drawn.tag != f"{SVG}g"
    return +found


def on_the_page(figure: figures.Figure) -> Counter[str]:
    """Marks of all panels of a figure, each drawn alone as ``page.js`` does."""
    found: Counter[str] = Counter()
    for panel in figure.panels:
        data = {"datasets": {"numbers": figure.numbers}, "config": figures.CONFIG}
        chart = {**panel.chart, **data, "width": figures.WIDTH}
        found += marks(vl_convert.vegalite_to_svg(json.loads(json.dumps(chart))))
    return found


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_that_stands_alone_has_the_marks_of_the_page(sweep, name):
    figure = FIGURES[name](sweep)
    shown = on_the_page(figure)
    assert sum(shown.values()) >= len(figure.panels)
    assert marks(figures.as_svg(figure)) == shown


@pytest.mark.parametrize("name", FIGURES)
def test_no_title_of_a_panel_reaches_into_the_next(sweep, name):
    whole = figures.stand_alone(FIGURES[name](sweep))
    for chart, panel in zip(whole["concat"], FIGURES[name](sweep).panels, strict=True):
        assert plain(" ".join(chart["title"])) == plain(panel.title)
        assert all(len(line) * 7 <= figures.WIDTH for line in chart["title"])


def test_the_picture_that_the_command_writes_is_the_pages_with_what_papers_found(tmp_path):
    config = {
        "dataset": {"_target_": "murmur.learning.data.datasets.mnist", "name": "MNIST"},
        "strategy": {"name": "privatekt", "K": 2, "local": {"learning_rate": 0.05}},
        "privacy": {"epsilon": 5, "delta": 1e-5, "paper": True},
        "federation": {"num_clients": 80, "clients_per_round": 40, "public": 12000},
        "model": {"_target_": "murmur.learning.models.cnn_small"},
    }
    write_run(tmp_path / "run", rounds=30, extra=config)
    assert main(["report", str(tmp_path / "run"), "--svg", str(tmp_path / "a.svg")]) == 0
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    listed = re.search(r'id="figures">(.*?)</script>', text, re.S)
    drawn = json.loads(listed[1])["figures"]["rounds-accuracy"]
    panels = [figures.Panel(**panel) for panel in drawn.pop("panels")]
    svg = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert marks(svg) == on_the_page(figures.Figure(**drawn, panels=panels))
    assert "logged run" in svg  # the reference has a name in the legend


class Cells(HTMLParser):
    """Name and score of each setting in the page's first table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.cell: list[str] | None = None

    def handle_starttag(self, tag, attributes):
        if tag == "tr" and "data-s" in dict(attributes):
            self.rows.append([])
        if tag in ("th", "td") and self.rows:
            self.cell = []

    def handle_data(self, data):
        if self.cell is not None:
            self.cell.append(data)

    def handle_endtag(self, tag):
        if tag in ("th", "td") and self.cell is not None:
            self.rows[-1].append("".join(self.cell).strip())
            self.cell = None


def test_tables_for_papers_and_spreadsheets_have_the_pages_settings_and_scores(
    sweep_folder, tmp_path
):
    files = {name: tmp_path / name for name in ("csv", "latex", "markdown")}
    options = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    assert main(["report", str(sweep_folder), "--out", str(tmp_path / "page"), *options]) == 0
    html = (tmp_path / "page").read_text(encoding="utf-8")
    reader = Cells()
    reader.feed(html[html.index('id="glance"') : html.index("</section>")])
    shown = {row[0]: row[1].split()[0] for row in reader.rows}
    assert len(shown) == len(reader.rows) == 6
    marked = files["markdown"].read_text(encoding="utf-8")
    lines = [line[2:-2].split(" | ") for line in marked.splitlines() if line.startswith("| ")]
    names = lines[0]
    setting, score = names.index("setting"), names.index("accuracy")
    written = {line[setting]: line[score].split()[0] for line in lines}
    assert {name: written[name] for name in shown} == shown
    assert set(written) - set(shown) == {"setting", "---"}
    latex = files["latex"].read_text(encoding="utf-8").replace("~", "\u00a0")
    for name, score in shown.items():
        family = name.partition(",")[0]
        assert re.search(rf"{family}.*& {score.replace('–', '--')}", latex)
    records = list(csv.DictReader(files["csv"].open(encoding="utf-8")))
    assert [record["run"] for record in records] == [run.name for run in read(sweep_folder).runs]
