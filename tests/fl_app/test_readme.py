"""README and the pages it leads to name what exists."""

import re
from pathlib import Path

import pytest

from docs import reference
from fl_app.cli import TOOLS
from fl_app.config.groups import groups

PROJECT = Path(__file__).resolve().parents[2]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
FOLDERS = ("benchmarks", "deploy", "docs", "packages", "research")
PAGES = sorted(path for folder in FOLDERS for path in (PROJECT / folder).glob("**/*.md"))
PAGES += [PROJECT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


def anchors(page):
    """The names by which a link can lead to a heading of ``page``."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text("utf-8")), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        found.add(re.sub(r"[^\w\- ]", "", words.lower()).strip().replace(" ", "-"))
    return found


def test_readme_is_one_screen():
    assert len(README.splitlines()) <= 60


@pytest.mark.parametrize(
    "page", [PROJECT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(PROJECT))
)
def test_pages_name_files_that_exist(page):
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:tests|benchmarks|docs|deploy|conf|privacy)/[\w./]*)`", text):
        assert (PROJECT / path).exists(), path
    for link in re.findall(r"\]\(((?!http)[^)\s]+)\)", FENCED.sub("", text)):
        path, _, anchor = link.partition("#")
        place = page.parent / path if path else page
        assert place.exists(), link
        assert not anchor or anchor in anchors(place), link


def test_tables_of_tools_and_algorithms_are_whole():
    tools = reference.commands()
    assert set(re.findall(r"^## murmur ([\w-]+)$", tools, re.MULTILINE)) == set(TOOLS)
    assert set(re.findall(r"^usage: murmur ([\w-]+)", tools, re.MULTILINE)) == set(TOOLS) - {
        "supernode"
    }
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
    assert installs["RUNS"] == "simulation"
    assert set(installs["STAMP"].split(",")) > {"simulation", "dev"}


def test_the_readme_says_what_an_installation_weighs_as_make_does():
    makefile = (PROJECT / "Makefile").read_text()
    sizes = re.findall(r"[\d.]+ GB", makefile)
    assert len(sizes) == 2 and all(size in README for size in sizes)
