"""The commands of deploy/README.md, as they stand there, from nothing to a finished run."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fl_app.tools.doctor import superlink
from fl_app.tools.export import export
from murmur.privacy.ledger import Ledger
from tests.deploy.conftest import ENDS
from tests.federation.loopback import PROJECT, free_port, wait_for

TEXT = (PROJECT / "deploy" / "README.md").read_text()
# What it is for: where, and the line that says it; then the commands.
BLOCKS = {
    head.removeprefix("# ").split(";")[0]: commands
    for head, _, commands in (
        b.partition("\n") for b in re.findall(r"```bash\n(.+?)```", TEXT, re.S)
    )
}
(CONNECTION,) = re.findall(r"```toml\n(.+?)```", TEXT, re.S)
SETTINGS = [
    "strategy=privatekt",
    "privacy.epsilon=4.9",  # two labels below 2.5, the most that the example policy allows
    "strategy.K=2",
    "dataset=digits",
    "federation.num_clients=1",
    "federation.clients_per_round=1",
    "federation.quorum=1.0",
    "federation.num_rounds=1",
]
ORDER = [
    "server: install",
    "server: certificates",
    "server: start the SuperLink",
    "server: is anything missing?",
    "device: install, in a checkout",
    "device: a key of its own, and a secret for its two processes",
    "server: enrol it, with the ids of the clients that it hosts",
    "server: the file that devices name as public=",
    "device: is anything missing?",
    "device: would its policy refuse the run?",
    "device: start the SuperNode, which holds the key and runs nothing",
    "device: start what answers, under an account of its own",
    "server: run",
]


def test_every_command_is_tried_below():
    assert sorted(BLOCKS) == sorted(ORDER)


@pytest.fixture
def shell(tmp_path):
    """Runs a block in a folder of its own, where nothing but ``deploy/`` is; ends what it began."""
    (tmp_path / "deploy").symlink_to(PROJECT / "deploy")
    device = tmp_path / "device"
    config = {
        "clients": 0,
        "data": f"{device}/client-0.npz",
        "public": f"{tmp_path}/shared/public.npz",
        "shape": "1,8,8",
        "classes": 10,
        "policy": f"{device}/policy.yaml",
        "state": f"{device}/state",
    }
    environment = {
        **os.environ,
        "HOST": "127.0.0.1",
        "PORT": str(free_port()),
        "RUNTIME_PORT": str(free_port()),
        "NODE_CONFIG": " ".join(f"{key}={json.dumps(value)}" for key, value in config.items()),
        "CLIENTS": "0",
        "SETTINGS": " ".join(SETTINGS),
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PWD": str(tmp_path),
    }
    begun = []

    def run(name, wait=True):
        with open(tmp_path / "log", "ab") as log:
            process = subprocess.Popen(
                ["bash", "-euc", BLOCKS[name]],
                env=environment,
                cwd=tmp_path,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        begun.append(process)
        if wait:
            assert process.wait(ENDS) == 0, f"{name}: {(tmp_path / 'log').read_text()[-4000:]}"

    run.environment = environment
    yield run
    for process in reversed(begun):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(ENDS)


def answers(shell, folder):
    checks = superlink(f"127.0.0.1:{shell.environment['PORT']}", folder / "certificates" / "ca.pem")
    return all(check.status != "fail" for check in checks)


@pytest.mark.federation
def test_the_commands_lead_from_nothing_to_a_finished_run(shell, tmp_path):
    device = tmp_path / "device"
    steps = iter(name for name in ORDER if "install" not in name)
    for name in steps:
        if name == "server: start the SuperLink":
            shell(name, wait=False)
            wait_for(lambda: answers(shell, tmp_path), ENDS, "the SuperLink")
            (tmp_path / "flwr").mkdir(exist_ok=True)
            connection = CONNECTION.replace("HOST:PORT", f"127.0.0.1:{shell.environment['PORT']}")
            connection = connection.replace("/absolute/path", str(tmp_path))
            (tmp_path / "flwr" / "config.toml").write_text(connection)
        elif name.startswith("device: start"):
            shell(name, wait=False)
        elif name == "device: is anything missing?":
            export(device, SETTINGS, shards=True)
            shutil.copy(PROJECT / "deploy" / "policy.example.yaml", device / "policy.yaml")
            shell(name)
        else:
            shell(name)
    (run,) = (tmp_path / "runs").iterdir()
    (row,) = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()][1:]
    assert row["answered"] == 1 and row["failed"] == {}
    with Ledger(device / "state" / "ledger.sqlite", create=False) as ledger:
        (entry,) = [each for each in ledger.entries(0) if each.kind == "charge"]
        assert entry.run == run.name


@pytest.mark.parametrize("side", ["server", "device"])
def test_what_is_installed_exists(side):
    (commands,) = (BLOCKS[name] for name in ORDER if name.startswith(f"{side}: install"))
    program, word, *rest = shlex.split(commands, comments=True)
    assert (program, word) == ("pip", "install")
    extras = re.findall(r"\[(.+)\]", rest[-1])
    known = (PROJECT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in known for extra in extras)
