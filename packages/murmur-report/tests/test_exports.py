"""What the page shows, every export shows: pictures and tables are read back and counted."""

import contextlib
import csv
import json
import re
import shutil
import subprocess
import zlib
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import vl_convert
from matplotlib import get_data_path
from matplotlib.font_manager import get_font
from PIL import Image

from fl_app.cli import main
from fl_app.run.load import load_runs
from murmur_report import charts, export, figures, page
from murmur_report.settings import group
from tests.run_folders import write_run

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
    return group(load_runs(sweep_folder).runs)


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


def on_the_page(figure: charts.Figure) -> Counter[str]:
    """Marks of all panels of a figure, each drawn alone as ``page.js`` does."""
    found: Counter[str] = Counter()
    for panel in figure.panels:
        data = {"datasets": {"numbers": figure.numbers}, "config": charts.CONFIG}
        chart = {**panel.chart, **data, "width": export.WIDTH}
        found += marks(vl_convert.vegalite_to_svg(json.loads(json.dumps(chart))))
    return found


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_that_stands_alone_has_the_marks_of_the_page(sweep, name):
    figure = FIGURES[name](sweep)
    shown = on_the_page(figure)
    assert sum(shown.values()) >= len(figure.panels)
    assert marks(export.as_svg(figure)) == shown


@pytest.mark.parametrize("name", FIGURES)
def test_no_title_of_a_panel_reaches_into_the_next(sweep, name):
    whole = export.stand_alone(FIGURES[name](sweep))
    for chart, panel in zip(whole["concat"], FIGURES[name](sweep).panels, strict=True):
        assert plain(" ".join(chart["title"])) == plain(panel.title).replace("10⁻⁵", "1e-5")
        assert all(len(line) * 7 <= export.WIDTH for line in chart["title"])


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
    panels = [charts.Panel(**panel) for panel in drawn.pop("panels")]
    svg = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert marks(svg) == on_the_page(charts.Figure(**drawn, panels=panels))
    assert "logged run" in svg  # the reference has a name in the legend


def test_every_figure_is_saved_a_column_wide_in_three_formats(sweep_folder, tmp_path):
    """84 mm, which are 238 points."""
    words = ["report", str(sweep_folder), "--out", str(tmp_path / "page"), "--figures"]
    assert main([*words, str(tmp_path / "figures")]) == 0
    every = page.every_figure(load_runs(sweep_folder))
    saved = {path.name for path in (tmp_path / "figures").iterdir()}
    assert saved == {f"{figure.id}.{end}" for figure in every for end in ("svg", "pdf", "png")}
    for figure in every:
        file = tmp_path / "figures" / figure.id
        shown = on_the_page(figure)
        svg = file.with_suffix(".svg").read_text(encoding="utf-8")
        assert marks(svg) == shown
        [wide] = re.findall(r'<svg[^>]* width="(\d+)pt"', svg)
        assert 0.75 * 238 <= int(wide) <= 238
        pdf = file.with_suffix(".pdf").read_bytes()
        [box] = re.findall(rb"/MediaBox \[0 0 (\d+)", pdf)
        assert int(box) == int(wide)
        painted = re.findall(rb"(?m)(?:^|\s)(?:f|S|f\*)\s", b"".join(streams(pdf)))
        joined = sum(shown[kind] for kind in ("mark-line", "mark-area"))
        assert len(painted) >= shown.total() - joined > 0 or joined
        with Image.open(file.with_suffix(".png")) as picture:
            assert picture.width == pytest.approx(int(wide) / 72 * 600, abs=1)
            colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24)}
        drawn = {tuple(bytes.fromhex(hue[1:])) for hue in re.findall(r"#[0-9a-f]{6}", svg)}
        assert len(drawn & colours) >= 2


def streams(pdf: bytes) -> list[bytes]:
    """What a PDF draws, without compression."""
    found = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.S)
    plain = []
    for part in found:
        with contextlib.suppress(zlib.error):
            plain.append(zlib.decompress(part))
    return plain


def test_a_latex_table_is_no_wider_than_the_text_of_an_article(tmp_path):
    """Measured in the letters that LaTeX sets; where there is LaTeX, it is compiled below."""
    font = get_font(str(Path(get_data_path()) / "fonts" / "ttf" / "cmr10.ttf"))
    font.set_size(9, 72)

    def wide(text: str) -> float:
        plain = re.sub(
            r"\\(times|pm)", "x", re.sub(r"\\(varepsilon|infty|delta|dagger)", "e", text)
        )
        font.set_text(re.sub(r"[$^{}\\]", "", plain).replace("~", " "), 0)
        return float(font.get_width_height()[0] / 64)

    for table in re.findall(r"\\toprule(.*?)\\bottomrule", latex_of_a_long_sweep(tmp_path), re.S):
        rows = [
            re.split(r"(?<!\\)&", line[:-2])
            for line in table.splitlines()
            if line.endswith(r"\\") and "multicolumn" not in line
        ]
        others = [
            max(wide(cell.strip()) for cell in column)
            for column in list(zip(*rows, strict=True))[1:]
        ]
        words = (word for row in rows for word in re.split(r" |\\allowbreak ", row[0]))
        room = 345 - sum(others) - 12 * len(others)
        assert room >= max(map(wide, words)) and room >= 60


def latex_of_a_long_sweep(folder: Path) -> str:
    """The tables of settings with long names, with many scores, and of several promises."""
    for seed in (1, 2):
        for epsilon in (1, 8):
            words = [f"strategy.local.learning_rate_of_it={epsilon / 1000}", f"seed={seed}"]
            honest = 3 if epsilon == 8 else None
            run = write_run(folder / f"{epsilon}-{seed}", *words, honest=honest)
            more = '"balanced_accuracy": 0.51, "f1_macro": 0.52, "loss": 0.5'
            run.rows_path.write_text(run.rows_path.read_text().replace('"loss": 0.5', more))
    files = folder / "x.tex"
    assert main(["report", str(folder), "--latex", str(files)]) == 0
    return files.read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
def test_a_latex_table_is_compiled_without_a_warning(tmp_path):
    text = latex_of_a_long_sweep(tmp_path)
    head = r"\documentclass{article}\usepackage{booktabs,tabularx}\begin{document}"
    (tmp_path / "all.tex").write_text(f"{head}\n{text}\n\\end{{document}}", encoding="utf-8")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert said.returncode == 0 and "Overfull" not in said.stdout, said.stdout


def test_a_latex_table_has_a_label_powers_of_ten_and_its_promise(tmp_path):
    text = latex_of_a_long_sweep(tmp_path)
    labels = re.findall(r"\\label\{tab:([\w-]+)\}", text)
    assert len(labels) == len(set(labels)) == text.count(r"\begin{table}") >= 2
    assert "$10^{-5}$" in text and "1e-05" not in text
    assert not re.search("[εδγ∞±×–†⁰-⁹]", text)
    names = set(re.findall(r"PrivateKT|privatekt|Privatekt", text))
    assert names == {"PrivateKT"}
    captions = re.findall(r"\\caption\{(.*)\}", text)
    assert all("whom" in caption or "Protected:" in caption for caption in captions)
    assert all(caption.count(r"$\pm$:") <= 1 for caption in captions)


def test_a_csv_has_columns_for_every_part_of_the_promise(tmp_path):
    write_run(tmp_path / "all" / "a", "seed=1")
    write_run(tmp_path / "all" / "b", "seed=1", "strategy.K=9", honest=3)
    write_run(tmp_path / "all" / "c", "seed=2", done=2)
    assert main(["report", str(tmp_path / "all"), "--csv", str(tmp_path / "x.csv")]) == 0
    with (tmp_path / "x.csv").open(encoding="utf-8") as file:
        proven, assumed, unfinished = csv.DictReader(file)
    for row in (proven, assumed):
        assert row["unit"] == "everything that one client holds"
        assert row["neighbours"] == "exchanged for anything else"
        assert row["adversary"] == "a curious server"
        assert float(row["delta"]) == 1e-5
    assert proven["condition"] == "none: proven" and float(proven["epsilon"]) == pytest.approx(30)
    assert "3 clients are honest" in assumed["condition"]
    assert not any(unfinished[name] for name in ("unit", "epsilon", "condition"))


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
    shown = {row[0]: row[1:3] for row in reader.rows}
    assert len(shown) == len(reader.rows) == 6
    marked = files["markdown"].read_text(encoding="utf-8")
    written = {}
    for line in (line[2:-2].split(" | ") for line in marked.splitlines() if line.startswith("| ")):
        if line[0] == "setting":
            names = line
        elif "accuracy" in names and line[0] != "---":
            row = dict(zip(names, line, strict=True))
            written[row["setting"]] = (row["accuracy"], row.get("ε", "–"))
    assert set(written) == set(shown)
    for name, (reached, epsilon) in shown.items():
        assert written[name] == (reached, epsilon.split()[0])
    latex = files["latex"].read_text(encoding="utf-8").replace("~", "\u00a0")
    for name, (score, _) in shown.items():
        family = name.partition(",")[0]
        assert re.search(rf"{family}.*& {score.split()[0].replace('–', '--')}", latex)
    records = list(csv.DictReader(files["csv"].open(encoding="utf-8")))
    assert [record["run"] for record in records] == [
        run.name for run in load_runs(sweep_folder).runs
    ]
