"""README and the pages it leads to name what exists."""

import re
from pathlib import Path

import pytest

from fl_app.cli import TOOLS
from fl_app.config.conf_files import groups

PROJECT = Path(__file__).resolve().parents[2]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
PAGES = sorted((PROJECT / "docs").glob("*.md"))


def test_readme_is_one_screen():
    assert len(README.splitlines()) <= 60


@pytest.mark.parametrize("page", [PROJECT / "README.md", *PAGES], ids=lambda page: page.name)
def test_pages_name_files_that_exist(page):
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:tests|benchmarks|docs|deploy|conf|privacy)/[\w./]*)`", text):
        assert (PROJECT / path).exists(), path
    for path in re.findall(r"\]\(((?!http|#)[^)#]+)[^)]*\)", text):
        if path != "settings.md":  # which `make docs` makes
            assert (page.parent / path).exists(), path


def test_tables_of_tools_and_algorithms_are_whole():
    tools = (PROJECT / "docs" / "tools.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `murmur (\w+)", tools, re.MULTILINE)) == set(TOOLS) - {"completion"}
    algorithms = (PROJECT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ([^|]+) \|", algorithms, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert named == set(groups()["strategy"])


def test_make_has_the_targets_that_are_named():
    makefile = (PROJECT / "Makefile").read_text()
    start = (PROJECT / "docs" / "start.md").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README + start, re.MULTILINE):
        assert f"\n{target}:" in makefile


def test_the_demo_installs_what_it_needs_and_the_tests_the_rest():
    makefile = (PROJECT / "Makefile").read_text()
    demo, test = (re.search(rf"^{name}: (\S+)$", makefile, re.M)[1] for name in ("demo", "test"))
    assert (demo, test) == ("$(RUNS)", "$(STAMP)")
    installs = dict(re.findall(r"^\$\((\w+)\):.*?--editable '\.\[(\S+)\]'", makefile, re.M | re.S))
    assert installs["RUNS"] == "simulation,report"  # what a run, and the card's next commands, need
    assert set(installs["STAMP"].split(",")) > {"simulation", "dev"}


def test_the_readme_says_what_an_installation_weighs_as_make_does():
    makefile = (PROJECT / "Makefile").read_text()
    sizes = re.findall(r"[\d.]+ GB", makefile)
    assert len(sizes) == 2 and all(size in README for size in sizes)
