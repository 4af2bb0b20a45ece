"""A wheel in an environment of its own, used in a folder that has nothing to do with Murmur."""

import os
import subprocess
import sys
from pathlib import Path

import flwr
import pytest
from safetensors.numpy import load_file

from murmur.privacy.ledger import Ledger
from tests.deploy.conftest import ENDS
from tests.federation.loopback import BIN, PROJECT, Federation, wait_for

pytestmark = pytest.mark.federation
WORDS = [
    "dataset=digits",
    "federation.num_clients=2",
    "federation.num_rounds=1",
    "federation.round_timeout=300",
    "strategy=fedavg",
]
ENGINES = {"ray": ["engine.workers=1"], "inline": []}


def call(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheels in an environment that sees our dependencies, not our checkout; its bin/."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for project in (PROJECT, PROJECT / "packages" / "murmur-kernels"):
        call(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, project)
    call(sys.executable, "-m", "venv", "--without-pip", folder / "env")
    python = folder / "env" / "bin" / "python"
    (packages,) = (folder / "env" / "lib").glob("*/site-packages")
    (packages / "dependencies.pth").write_text(str(Path(flwr.__file__).parents[1]))
    wheels = sorted(folder.glob("*.whl"))
    call(*pip, "--python", python, "install", "--no-deps", "--no-index", *wheels)
    for script in BIN.glob("fl*"):
        text = script.read_text().partition("\n")[2]
        (python.parent / script.name).write_text(f"#!{python}\n{text}")
        (python.parent / script.name).chmod(0o755)
    return python.parent


@pytest.fixture
def elsewhere(tmp_path):
    """A working directory in which somebody has a package with the name of one of ours."""
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "__init__.py").write_text("raise SystemExit('not ours')")
    return tmp_path


def test_every_simulating_engine_gives_the_same_bits_in_any_folder(installed, elsewhere):
    for engine, more in ENGINES.items():
        words = [f"engine={engine}", *more, *WORDS, f"run_dir={elsewhere / engine}"]
        call(installed / "murmur", *words, cwd=elsewhere)
    found = [load_file(elsewhere / engine / "model/model.safetensors") for engine in ENGINES]
    assert all((found[0][name] == other[name]).all() for other in found[1:] for name in found[0])


def test_a_package_that_hides_ours_is_named(installed, elsewhere):
    code = "from fl_app.api import run"
    call(installed / "python", "-P", "-c", code, cwd=elsewhere)
    hidden = subprocess.run(
        [installed / "python", "-c", code], cwd=elsewhere, capture_output=True, text=True
    )
    assert hidden.returncode and "not ours" not in hidden.stderr
    assert (
        hidden.stderr.strip()
        .splitlines()[-1]
        .startswith(f"ImportError: {elsewhere / 'clients'} hides Murmur's own package of that name")
    )
    environment = {**os.environ, "PYTHONPATH": str(elsewhere)}
    told = subprocess.run(
        [installed / "murmur", "--version"], env=environment, capture_output=True, text=True
    )
    assert told.returncode and "hides Murmur's own package" in told.stderr


def test_a_server_and_a_device_that_were_installed_from_it(installed, elsewhere):
    with Federation(elsewhere / "federation", installed) as federation:
        data = federation.folder / "data"
        call(installed / "murmur", "export", data, "--shards", *WORDS, cwd=elsewhere)
        federation.start_link()
        for client in range(2):
            key = federation.enrol(client)
            federation.start_node(client, key, federation.device(client))
        wait_for(lambda: federation.online() == 2, 300, "the devices")
        run = elsewhere / "run"
        command = [*federation.words, *WORDS, "federation.quorum=1.0", f"run_dir={run}"]
        assert federation.murmur(*command).wait(ENDS) == 0, federation.story()
        call(installed / "murmur", "statement", run, cwd=elsewhere)
    assert load_file(run / "model/model.safetensors")
    for client in range(2):
        with Ledger(federation.folder / f"state-{client}" / "ledger.sqlite", create=False) as own:
            assert own.releases() == 1
