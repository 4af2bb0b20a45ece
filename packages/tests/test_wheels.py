"""Wheels of the core and of each package: installed in every order, and used without the others."""

import itertools
import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks.golden_runs import differences, take_measured
from fl_app.cli import PACKAGED
from tests.federation.loopback import SimulatedRuns
from tests.wheels import CORE, NAMES, Environment, built, folder_of, link_libraries, own_libraries

GOLDEN = json.loads((CORE / "tests/formats/golden_runs.json").read_text(encoding="utf-8"))
FEDAVG = ["strategy=fedavg", "dataset=digits", "privacy.noise=seeded", "tracking=none"]
FEDAVG += ["federation.num_clients=6", "federation.num_rounds=2"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Wheels by the names of their distributions."""
    folder = tmp_path_factory.mktemp("wheels")
    return {name: built(folder_of(name), folder) for name in ("murmur-fl", *NAMES)}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """A folder with links to all that is installed here but Murmur."""
    return link_libraries(tmp_path_factory.mktemp("libraries"), own_libraries())


@pytest.mark.thorough
def test_wheels_install_in_every_order_and_leave_the_same_files(wheels, libraries, tmp_path):
    found = set()
    for number, order in enumerate(itertools.permutations(wheels)):
        here = Environment(tmp_path / str(number), libraries)
        for name in order:
            here.install(wheels[name])
        found.add("\n".join(here.files()))
    assert len(found) == 1
    paths = [line.rsplit(",", 2)[0] for line in found.pop().splitlines()]
    assert len(paths) == len(set(paths))  # no file is in two wheels


@pytest.mark.thorough
@pytest.mark.parametrize("word", PACKAGED)
def test_a_word_says_what_to_install_until_its_wheel_is_there(wheels, libraries, tmp_path, word):
    here = Environment(tmp_path / "env", libraries)
    here.install(wheels["murmur-fl"])
    status, said = here.murmur(word, "--help", folder=tmp_path)
    assert status == 2 and f"pip install ./packages/{PACKAGED[word]}" in said
    here.install(wheels[PACKAGED[word]])
    status, said = here.murmur(word, "--help", folder=tmp_path)
    assert status == 0 and f"usage: murmur {word}" in said


@pytest.mark.thorough
@pytest.mark.parametrize("packages", [("murmur-kernels",), ()], ids=["kernels", "autograd"])
def test_flwr_run_from_wheels_gives_the_inline_engines_bits_and_golden_charges(
    wheels, libraries, tmp_path, monkeypatch, packages
):
    here = Environment(tmp_path / "env", libraries)
    for name in ("murmur-fl", *packages):
        here.install(wheels[name])
    for script in Path(sys.executable).parent.glob("fl*"):
        body = script.read_text().partition("\n")[2]
        (here.bin / script.name).write_text(f"#!{here.bin}/python\n{body}")
        (here.bin / script.name).chmod(0o755)
    inline, flower = tmp_path / "inline", tmp_path / "flower"
    status, said = here.murmur(*FEDAVG, "engine=inline", f"run_dir={inline}", folder=tmp_path)
    assert status == 0, said
    assert ("murmur-kernels is not installed" in said) == (not packages)
    monkeypatch.setenv("PATH", f"{here.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("tests.federation.loopback.BIN", here.bin)
    runs = SimulatedRuns(tmp_path / "home")
    try:
        words = " ".join([*FEDAVG, f"run_dir={flower}"])
        printed = runs.run(CORE, 2, f'overrides="{words}"', tmp_path)
    finally:
        runs.close()
    models = [next(run.rglob("model.safetensors")).read_bytes() for run in (inline, flower)]
    assert models[0] == models[1], printed
    for run in (inline, flower):
        stated = json.loads((run / "privacy.json").read_text(encoding="utf-8"))
        take_measured(stated)
        assert differences(GOLDEN["fedavg"]["statement"], stated, 1e-9) == []
        versions = json.loads((run / "provenance.json").read_text(encoding="utf-8"))["versions"]
        assert bool(versions.get("murmur-kernels")) == bool(packages)
