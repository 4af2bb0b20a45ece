"""`murmur experiments` describes every experiment, and research/experiments.md agrees."""

import re

from fl_app.cli import main
from fl_app.config.compose import compose
from fl_app.config.groups import CONF
from fl_app.tools.completion import experiments

PROJECT = CONF.parent
RESEARCH = PROJECT / "research"


def test_every_experiment_says_figure_time_and_result():
    names = {path.stem for path in (CONF / "experiment").glob("*.yaml")}
    found = experiments()
    assert {about.name for about in found} == names
    for about in found:
        assert len(about.what) > 20
        assert about.figure
        assert about.minutes is None or about.minutes > 0
        assert about.expected


def test_results_that_a_page_holds_name_a_page_that_exists():
    for about in experiments():
        for word in about.expected.replace("(", " ").replace(")", " ").split():
            if word.startswith(("benchmarks/", "docs/", "research/")):
                assert (PROJECT / word).exists(), about.name


def test_the_list_names_them_all(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    assert main(["experiments"]) == 0
    printed = capsys.readouterr().out
    for about in experiments():
        assert about.name in printed


def test_what_is_said_of_an_experiment_is_its_own():
    assert compose(["experiment=nbafl_rounds"]).about.expected.startswith("best near 20")


def page():
    """The rows of research/experiments.md: experiment -> cells."""
    lines = (RESEARCH / "experiments.md").read_text(encoding="utf-8").splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if "| `" in line
    ]
    return {row[0].strip("`"): row[1:] for row in rows if row[0] != "`experiment=`"}


def test_the_page_shows_every_experiment_or_says_that_it_was_not_run():
    rows = page()
    assert sorted(rows) == sorted(about.name for about in experiments())
    for about in experiments():
        _, shown, minutes, machine = rows[about.name]
        assert minutes == ("–" if about.minutes is None else f"{about.minutes:g}"), about.name
        assert shown.startswith("not run") == (about.expected == "not measured"), about.name
        assert (machine == "") == (about.minutes is None), about.name


def test_what_the_page_shows_is_there_and_in_its_document():
    shown_on_pages = set()
    for path in RESEARCH.glob("**/*.md"):
        for link in re.findall(r"!\[[^]]*\]\(([^)]+)\)\n", path.read_text(encoding="utf-8")):
            shown_on_pages.add((path.parent / link).resolve())
    for name, (_, shown, _, _) in page().items():
        links = re.findall(r"\]\(([^)]+)\)", shown)
        assert links or shown.startswith("not run"), name
        for link in links:
            assert (RESEARCH / link).exists(), name
            if "img/" in link:
                place = (RESEARCH / link).resolve()
                assert place in shown_on_pages, f"{link}: no document shows it"
