"""The wheel, built and installed: what it holds, and docs/new-algorithm.md typed with it alone."""

import json
import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.wheels import Environment, built, link_libraries, own_libraries

PROJECT = Path(__file__).resolve().parents[2]
PAGE = (PROJECT / "docs" / "new-algorithm.md").read_text(encoding="utf-8")
FILE = re.compile(r"```(?:python|yaml)\n# (mine/\S+)\n(.*?)```", re.DOTALL)
COMMANDS = re.compile(r"```sh\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(PROJECT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return built(PROJECT / "packages" / "murmur-kernels", tmp_path_factory.mktemp("kernels"))


def test_the_wheel_installs_four_names_and_the_configuration(wheel):
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    tops = {name.split("/")[0] for name in names}
    metadata = {name for name in tops if name.endswith(".dist-info")}
    assert len(metadata) == 1
    assert tops - metadata == {"murmur", "fl_app", "strategies", "clients", "conf"}
    assert {"conf/config.yaml", "fl_app/pyproject.toml", "fl_app/py.typed"} <= set(names)


@pytest.fixture(scope="module")
def installed(wheel, kernels, tmp_path_factory):
    """The folder with the programs of a fresh environment that has these wheels."""
    home = tmp_path_factory.mktemp("installed")
    here = Environment(home / "env", link_libraries(home / "libraries", own_libraries()))
    for each in (kernels, wheel):
        here.install(each)
    return here.bin


def test_an_algorithm_of_ones_own_by_the_page_and_a_wheel(installed, tmp_path):
    files = dict(FILE.findall(PAGE))
    assert len(files) == 3
    folder, run = COMMANDS.findall(PAGE)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{installed}{os.pathsep}{environment['PATH']}"

    def typed(command):
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(installed.parent) in typed("python -c 'import murmur; print(murmur.__file__)'")
    typed(folder)
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    typed(run)
    [left] = (tmp_path / "runs").iterdir()
    rows = [json.loads(line) for line in (left / "rounds.jsonl").read_text().splitlines()]
    assert rows[-1]["answered"] > 0
    metrics = json.loads((left / "metrics.json").read_text())
    assert 3.9 < metrics["epsilon_proven"] <= 4  # the default budget, all of it
    assert metrics["failed"] == 0
