"""What a picture shows is the mean and the spread over seeds of what was measured."""

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from benchmarks.pictures import band, canvas, curve, rows, save
from fl_app.config.compose import compose
from research import sweep_picture
from research.frontier import curves, picture
from research.frontier.candidates import candidates
from research.frontier.rows import SETTINGS, cells


def test_numbers_stand_where_they_belong_and_others_at_equal_distances():
    _, [one, other] = canvas(2)
    curve(one, ["1", "5", "10"], [[0.2, 0.4], [0.6, 0.6], [0.8, 1.0]])
    curve(other, ["1", "5", "inf"], [[0.2], [0.6], [0.8]])
    [line] = one.containers
    assert line.lines[0].get_xydata().tolist() == [[1, pytest.approx(0.3)], [5, 0.6], [10, 0.9]]
    low, high = line.lines[1]
    assert high.get_ydata()[0] - low.get_ydata()[0] == pytest.approx(2 * np.std([0.2, 0.4], ddof=1))
    [alone] = other.containers
    assert alone.lines[0].get_xdata().tolist() == [0, 1, 2]
    assert [label.get_text() for label in other.get_xticklabels()] == ["1", "5", "∞"]
    assert not alone.has_yerr


def test_a_band_reaches_from_least_to_most_and_rows_keep_their_order():
    _, [one, other] = canvas(2)
    band(one, [1, 2], [[0.1, 0.3], [0.5, 0.9]], "a line")
    [area] = one.collections
    assert area.get_datalim(one.transData).ymax == pytest.approx(0.9)
    assert one.lines[0].get_ydata().tolist() == pytest.approx([0.2, 0.7])
    rows(other, {"IID": {"first": [0.5], "second": [0.7]}, "skewed": {"second": [0.4]}})
    assert [label.get_text() for label in other.get_yticklabels()] == ["first", "second"]
    bottom, top = other.get_ylim()
    assert bottom > top, "the first row is on top"


def test_a_picture_has_a_legend_only_where_lines_have_names(tmp_path):
    for label in (None, "a name"):
        figure, [axes] = canvas()
        curve(axes, ["1", "2"], [[0.1], [0.2]], label)
        save(figure, tmp_path / "deep" / "one.png")
        assert (axes.get_legend() is not None) == (label is not None)
    assert (tmp_path / "deep" / "one.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def sweep(tmp_path):
    """A sweep of two budgets and two seeds; one of the jobs is not finished."""
    jobs = []
    for epsilon in ("1", "inf"):
        for seed in (1, 2):
            key = f"{epsilon}-{seed}"
            words = [f"privacy.epsilon={epsilon}", f"seed={seed}", f"strategy.K={2 * seed}"]
            jobs.append({"key": key, "overrides": words})
            (tmp_path / key).mkdir()
            accuracies = [0.1, 0.2 * seed, 0.3 * seed]
            lines = [json.dumps({"round": n, "accuracy": a}) for n, a in enumerate(accuracies)]
            (tmp_path / key / "rounds.jsonl").write_text("\n".join(lines) + "\n")
            if key != "inf-2":
                (tmp_path / key / "metrics.json").write_text(
                    json.dumps({"seconds": 3.0, "rounds": 2})
                )
    (tmp_path / "sweep.json").write_text(json.dumps({"overrides": [], "jobs": jobs}))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["privacy.epsilon"], ["| 1 | 0.375 ± 0.177 | 2 seeds |", "| ∞ | 0.250 | 1 seeds |"]),
        (["strategy.K", "--log"], ["| 2 | 0.250 ± 0.000 | 2 seeds |", "| 4 | 0.500 | 1 seeds |"]),
        (
            ["round", "--lines", "privacy.epsilon"],
            ["= 1\naccuracy after the last round: 0.450", "= ∞\naccuracy after the last"],
        ),
    ],
)
def test_a_sweeps_picture_is_of_its_finished_runs(sweep, monkeypatch, capsys, words, printed):
    picture = sweep / "picture.png"
    words = [*words, str(sweep), "--picture", str(picture)]
    monkeypatch.setattr(sys, "argv", ["sweep_picture", *words])
    sweep_picture.main()
    found = capsys.readouterr().out
    for words in (*printed, "3 runs of 3 s each"):
        assert words in found
    assert picture.stat().st_size < 80_000


ROWS = curves.load(curves.MEASURED)
PROJECT = Path(curves.__file__).resolve().parents[2]
PAGE = (PROJECT / "research" / "frontier" / "README.md").read_text(encoding="utf-8")


def test_the_pages_tables_are_those_of_the_rows_that_are_kept():
    assert ROWS and curves.with_tables(PAGE, ROWS) == PAGE


@pytest.mark.parametrize("name", picture.COLOURS)
def test_the_readmes_picture_is_of_the_pages_rows(name):
    svg = ElementTree.parse(PROJECT / "docs" / "img" / name)
    [described] = svg.iter("{http://purl.org/dc/elements/1.1/}description")
    drawn = json.loads(described.text)
    assert drawn == json.loads(json.dumps(picture.points(ROWS)))
    for setting, methods in drawn.items():
        for method, points in methods.items():
            [line] = re.findall(rf"^\| {method}: {re.escape(setting)} \|.*", PAGE, re.MULTILINE)[:1]
            shown = [f"{mean:.3f} ± {spread:.3f} (3)" for _, mean, spread in points]
            assert len(shown) == 5 and all(cell in line for cell in shown)
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    for word in ("Dirichlet 0.5", "pool of 360", "standard deviation", "three seeds", name):
        assert word in readme


def described(path: Path) -> str | None:
    """What a picture says of itself; None for one of an earlier version."""
    if path.suffix == ".svg":
        found = ElementTree.parse(path).iter("{http://purl.org/dc/elements/1.1/}description")
        return next((each.text for each in found), None)
    with Image.open(path) as picture:
        return picture.info.get("Description")


def test_the_pages_picture_is_of_the_rows_that_are_kept(tmp_path):
    curves.draw(curves.MEASURED, tmp_path / "now.png")
    kept = described(PROJECT / "docs" / "img" / "frontier.png")
    assert kept is not None and kept == described(tmp_path / "now.png")
    points = [point for panel in json.loads(kept) for line in panel for point in line]
    means = re.findall(r"(0\.\d{3}) ± ", PAGE)
    assert all(any(abs(float(mean) - y) < 6e-4 for mean in means) for _, y in points)


def test_every_picture_of_a_page_is_compared_with_its_rows_or_said_not_to_be():
    """A new picture says what it shows (``benchmarks.pictures.save``); its test is above."""
    shown = {}
    pages = [PROJECT / "README.md"]
    for folder in ("benchmarks", "docs", "research"):
        pages += (PROJECT / folder).glob("**/*.md")
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r"!\[[^]]*\]\(([^)]+)\)|=\"([\w/.-]+\.svg)", text):
            place = (page.parent / "".join(link)).resolve().relative_to(PROJECT)
            shown.setdefault(place, []).append(text)
        named = set(re.findall(r"\]\(([^)]*img/[\w.-]+\.(?:png|svg))\)", text))
        assert all((page.parent / link).exists() for link in named), page
    kept = set()
    for folder in ("docs", "research"):
        kept |= {path.relative_to(PROJECT) for path in (PROJECT / folder).glob("**/img/*")}
    assert kept == set(shown) - {Path("docs/architecture.svg")}
    compared = {"frontier.png", *picture.COLOURS}
    for place in kept:
        is_described = described(PROJECT / place) is not None
        assert is_described == (place.name in compared), place
        if not is_described:
            assert all(NOT_KEPT in text for text in shown[place]), place


NOT_KEPT = "Rows of this page's pictures were not kept: no test compares a picture with its table."


def test_no_cell_of_the_page_is_said_twice_with_another_figure():
    found = {}
    heads = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if any(cell.startswith("ε = ") for cell in cells[1:]):
            heads = cells
        if not line.startswith("|") or ": " not in cells[0] or len(cells) != len(heads):
            continue
        for head, cell in zip(heads[1:], cells[1:], strict=True):
            if figure := re.match(r"0\.\d{3}( ± 0\.\d{3})? \(\d\)", cell):
                assert found.setdefault((cells[0], head), figure[0]) == figure[0]
    assert len(found) > 100


@pytest.mark.parametrize("baseline", ["averaged updates", "DP-FedAvg"])
@pytest.mark.parametrize("clients", [60, 100, 1000])
def test_baselines_have_as_many_candidates_as_ours(baseline, clients):
    ours = [len(candidates(name, clients)) for name in ("class statistics", "votes", "disjoint")]
    assert len(candidates(baseline, clients)) >= max(ours)


def test_every_method_of_digits_has_the_settings_number_of_features():
    for cell in cells():
        if cell.setting.startswith("digits"):
            sizes = [compose(row.overrides()).features.components for row in cell.rows()]
            assert max(sizes) <= SETTINGS[cell.setting].features
