"""README and the pages it leads to name what exists."""

import itertools
import re
import shlex
from pathlib import Path

import pytest

from fl_app.cli import TOOLS
from fl_app.config.composition import compose
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


@pytest.mark.parametrize(
    "name", ["start", "researchers", "engineers", "data-protection", "running", "tools"]
)
def test_commands_of_the_pages_for_users_compose(name):
    """What a newcomer pastes names settings that exist."""
    text = (PROJECT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    for line in re.findall(r"^murmur .*", blocks, re.MULTILINE):
        words = shlex.split(line, comments=True)[1:]
        if words[0] in TOOLS or "--config-dir" in words:
            continue
        typed = [word.partition("=")[::2] for word in words if "=" in word]
        for values in itertools.product(*(values.split(",") for _, values in typed)):
            compose([f"{key}={value}" for (key, _), value in zip(typed, values, strict=True)])
