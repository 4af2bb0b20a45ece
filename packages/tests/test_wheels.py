"""Wheels of the core and of each package: installed in every order, and used without the others."""

import itertools
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import uv

from benchmarks.golden_runs import differences, take_measured
from fl_app.cli import PACKAGED
from tests.federation.loopback import SimulatedRuns
from tests.fl_app.test_wheel import built

PACKAGES = Path(__file__).resolve().parents[1]
CORE = PACKAGES.parent
NAMES = ("murmur-guard", "murmur-kernels", "murmur-report")
GOLDEN = json.loads((CORE / "tests/formats/golden_runs.json").read_text(encoding="utf-8"))
FEDAVG = ["strategy=fedavg", "dataset=digits", "privacy.noise=seeded", "tracking=none"]
FEDAVG += ["federation.num_clients=6", "federation.num_rounds=2"]
WRITTEN = re.compile(r"\.\./|.*dist-info/(INSTALLER|REQUESTED|direct_url|uv_)")  # by an installer
OURS = re.compile(r"murmur|fl_app|strategies|clients|conf$|_editable|.*\.pth$")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Wheels by the names of their distributions."""
    folder = tmp_path_factory.mktemp("wheels")
    made = {name: built(PACKAGES / name, folder) for name in NAMES}
    return {"murmur-fl": built(CORE, folder), **made}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """A folder with links to all that is installed here but Murmur."""
    folder = tmp_path_factory.mktemp("libraries")
    for place in map(Path, sys.path):
        if place.name == "site-packages":
            for path in place.iterdir():
                link = folder / path.name
                if not OURS.match(path.name) and not link.exists():
                    link.symlink_to(path)
    return folder


class Environment:
    """A fresh environment with these libraries and nothing of Murmur."""

    def __init__(self, home, libraries):
        venv.create(home, with_pip=False, symlinks=True)
        paths = {"base": str(home), "platbase": str(home)}
        self.site = Path(sysconfig.get_path("purelib", vars=paths))
        self.bin = home / "bin"
        (self.site / "shared.pth").write_text(f"{libraries}\n")

    def install(self, wheel):
        command = [uv.find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*command, "--python", str(self.bin / "python"), str(wheel)], check=True)

    def files(self):
        """Paths and digests of all files of the wheels, as their records have them."""
        records = sorted(self.site.glob("murmur_*.dist-info/RECORD"))
        found = [line for path in records for line in path.read_text().splitlines()]
        return sorted(line for line in found if not WRITTEN.match(line))

    def murmur(self, *words, folder):
        """What `murmur` does here: its status, and what it says on standard error."""
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [str(self.bin / "murmur"), *words], cwd=folder, env=own, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr


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
