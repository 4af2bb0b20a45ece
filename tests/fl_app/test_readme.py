"""README and the pages it leads to: an algorithm in three blocks that run; names that exist."""

import importlib
import itertools
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

import clients
import fl_app.config.conf_files
import strategies
from fl_app.cli import TOOLS
from fl_app.config.composition import compose
from fl_app.config.conf_files import groups
from tests.fl_app.running import run_inline

PROJECT = Path(__file__).resolve().parents[2]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
PAGES = sorted((PROJECT / "docs").glob("*.md"))
NEW_ALGORITHM = (PROJECT / "docs" / "new-algorithm.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(?:python|yaml)\n# ((?:strategies|clients|conf)/\S+)\n(.*?)```", re.DOTALL)


@pytest.fixture
def three_files(tmp_path, monkeypatch):
    """The blocks as files of a copy of the tree, importable under their own names."""
    shutil.copytree(fl_app.config.conf_files.CONF, tmp_path / "conf")
    blocks = dict(BLOCK.findall(NEW_ALGORITHM))
    for name, text in blocks.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(fl_app.config.conf_files, "CONF", tmp_path / "conf")
    for package in (strategies, clients):
        monkeypatch.setattr(
            package, "__path__", [*package.__path__, str(tmp_path / package.__name__)]
        )
    importlib.invalidate_caches()
    yield blocks
    for name in ("strategies.directions", "clients.directions"):
        sys.modules.pop(name, None)


def test_adding_an_algorithm_takes_the_three_files_of_its_page(tmp_path, three_files):
    assert len(three_files) == 3
    settings = ["strategy=directions", "federation.num_rounds=8", "privacy.noise=os"]
    run = run_inline(
        tmp_path / "run", *settings, small=["engine=inline", "federation.num_clients=20"]
    )
    rows = run.rows()
    assert rows[-1]["accuracy"] > rows[0]["accuracy"] + 0.2
    assert run.metrics()["epsilon_proven"] > 1000
    assert run.metrics()["failed"] == 0


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
