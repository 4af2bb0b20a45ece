"""The README's example of a new algorithm is real: its three blocks are run as they stand."""

import importlib
import re
import shutil
import sys
from pathlib import Path

import pytest

import clients
import fl_app.config.composition
import strategies
from fl_app.cli import TOOLS
from fl_app.config.composition import groups
from tests.fl_app.running import run_inline

PROJECT = Path(__file__).resolve().parents[2]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(?:python|yaml)\n# ((?:strategies|clients|conf)/\S+)\n(.*?)```", re.DOTALL)


@pytest.fixture
def three_files(tmp_path, monkeypatch):
    """The blocks as files of a copy of the tree, importable under their own names."""
    shutil.copytree(fl_app.config.composition.CONF, tmp_path / "conf")
    blocks = dict(BLOCK.findall(README))
    for name, text in blocks.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(fl_app.config.composition, "CONF", tmp_path / "conf")
    for package in (strategies, clients):
        monkeypatch.setattr(
            package, "__path__", [*package.__path__, str(tmp_path / package.__name__)]
        )
    importlib.invalidate_caches()
    yield blocks
    for name in ("strategies.votes", "clients.votes"):
        sys.modules.pop(name, None)


def test_adding_an_algorithm_takes_the_three_files_of_the_readme(tmp_path, three_files):
    assert len(three_files) == 3
    settings = ["strategy=votes", "federation.num_rounds=8", "privacy.noise=os"]
    run = run_inline(
        tmp_path / "run", *settings, small=["engine=inline", "federation.num_clients=20"]
    )
    rows = run.rows()
    assert rows[-1]["accuracy"] > rows[0]["accuracy"] + 0.2
    assert run.metrics()["epsilon_proven"] > 1000
    assert run.metrics()["failed"] == 0


def test_readme_names_the_commands_and_files_that_exist():
    for path in re.findall(r"`((?:tests|benchmarks|docs|deploy|conf|privacy)/[\w./]*)`", README):
        assert (PROJECT / path).exists(), path
    for path in re.findall(r"\]\(((?!http)[^)]+)\)", README):
        assert (PROJECT / path).exists(), path
    for tool in re.findall(r"^\| `murmur (\w+) ", README, re.MULTILINE):
        assert tool in TOOLS
    for strategy in re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[\w`, ]+) ", README, re.M))):
        assert strategy in groups()["strategy"]
    makefile = (PROJECT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile
