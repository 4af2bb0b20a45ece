"""The commands of deploy/README.md, as they stand there, from nothing to a finished run."""

import json
import math
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fl_app.device.received import received_model
from fl_app.run.model_folder import SavedModel
from fl_app.tools.export import export
from murmur.learning.data.datasets import digits
from murmur.privacy.accounting import Threat, epsilon
from murmur.privacy.events import GaussianEvent
from murmur.privacy.ledger import Ledger
from murmur.privacy.policy import Policy
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
_VALUE = r"""('[^']+'|"(?:[^"\\]|\\.)*"|[^\s`]+)"""
EXAMPLES = dict(re.findall(rf"([A-Z_]+)={_VALUE}", TEXT))
SETTINGS = EXAMPLES["SETTINGS"].strip("'").split()
DEVICES, CLIENTS = 3, 30
RUN, SPENT = "server: run", "device: what has it spent, and what is left?"
ORDER = [
    "server: install",
    "server: certificates",
    "server: start the SuperLink",
    "server: a key that signs what it asks",
    "server: is anything missing?",
    "device: install, in a checkout",
    "device: a key of its own, and a secret for its two processes",
    "server: enrol it, with the ids of the clients that it hosts",
    "device: the owner's policy, here for three runs of the example",
    "server: the file that devices name as public=",
    "device: is anything missing?",
    "device: would its policy refuse the run?",
    "device: start the SuperNode, which holds the key and runs nothing",
    "device: start what answers, under an account of its own",
    RUN,
    SPENT,
]


def test_every_command_is_tried_below_in_the_order_of_the_page():
    assert list(BLOCKS) == ORDER


class Machine:
    """The server, or a device: a folder in which blocks are typed, and what it began.

    Args:
        folder: where nothing but ``deploy/`` is, and what commands make.
        variables: those of the page.
    """

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "deploy").symlink_to(PROJECT / "deploy")
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",  # a row of a table is one line
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PWD": str(folder),
            **variables,
        }
        self.begun: list[subprocess.Popen] = []

    def begin(self, name: str) -> subprocess.Popen:
        """Types the block ``name`` and does not wait; its output is in ``log``."""
        with open(self.folder / "log", "ab") as log:
            process = subprocess.Popen(
                ["bash", "-euc", BLOCKS[name]],
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.begun.append(process)
        return process

    def type(self, name: str) -> str:
        """Types the block ``name``; what it has printed. AssertionError where it fails."""
        log = self.folder / "log"
        before = log.stat().st_size if log.exists() else 0
        status = self.begin(name).wait(ENDS)
        said = log.read_bytes()[before:].decode(errors="replace")
        assert status == 0, f"{name}: {said[-4000:]}"
        return said

    def end(self) -> None:
        """Ends all that was begun here."""
        for process in reversed(self.begun):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(ENDS)


@pytest.fixture
def machines(tmp_path):
    """The server, and the three devices with ten clients each; ends what they began."""
    address = {"HOST": "127.0.0.1", "PORT": str(free_port()), "SETTINGS": " ".join(SETTINGS)}
    server = Machine(tmp_path / "server", **address)
    devices = []
    for number in range(DEVICES):
        folder = tmp_path / f"device-{number}"
        clients = ",".join(map(str, range(10 * number, 10 * number + 10)))
        policy, state = folder / "policy.yaml", folder / "state"
        config = {
            "clients": clients,
            "data": f"{server.folder}/data/client-{{client}}.npz",
            "public": f"{server.folder}/shared/public.npz",
            "shape": "1,8,8",
            "classes": 10,
            "policy": str(policy),
            "state": str(state),
            "colluders": 10,
            "honest_clients": 20,
        }
        own = {
            "CLIENTS": clients,
            "RUNTIME_PORT": str(free_port()),
            "POLICY": str(policy),
            "STATE": str(state),
            "NODE_CONFIG": " ".join(f"{key}={json.dumps(value)}" for key, value in config.items()),
        }
        devices.append(Machine(folder, **address, **own))
        (folder / "certificates").symlink_to(server.folder / "certificates")
    yield server, devices
    for machine in (*devices, server):
        machine.end()


def test_a_devices_words_of_the_page_are_those_that_are_typed_here(machines):
    _, devices = machines
    written = EXAMPLES["NODE_CONFIG"].strip('"').replace('\\"', '"')
    typed = devices[0].environment["NODE_CONFIG"]
    keys = [[word.split("=")[0] for word in shlex.split(words)] for words in (written, typed)]
    assert keys[0] == keys[1]
    assert EXAMPLES["CLIENTS"] == devices[0].environment["CLIENTS"]
    assert all(f"{word}=" in written for word in ("colluders=10 honest_clients", "shape", "data"))


def answers(server: Machine) -> bool:
    """Whether its SuperLink is up, with the certificate that devices expect."""
    authority = server.folder / "certificates" / "ca.pem"
    address = ("127.0.0.1", int(server.environment["PORT"]))
    try:
        return bool(ssl.get_server_certificate(address, ca_certs=str(authority)))
    except OSError:
        return False


def set_up(server: Machine, devices: list[Machine]) -> None:
    """Types all of the page before the first run."""
    for name in ORDER[: ORDER.index(RUN)]:
        if "install" in name:
            continue
        if name == "server: start the SuperLink":
            server.begin(name)
            wait_for(lambda: answers(server), ENDS, "the SuperLink")
            home = server.folder / "flwr"
            home.mkdir(exist_ok=True)
            text = CONNECTION.replace("HOST:PORT", f"127.0.0.1:{server.environment['PORT']}")
            text = text.replace("/absolute/path", str(server.folder))
            (home / "config.toml").write_text(text)
            export(server.folder / "data", SETTINGS, shards=True)
        elif name.startswith("server: enrol"):
            for device in devices:
                shutil.copy(device.folder / "node.key.pub", server.folder)
                server.environment["CLIENTS"] = device.environment["CLIENTS"]
                server.type(name)
        elif name.startswith("server"):
            server.type(name)
            if name.startswith("server: a key"):
                for device in devices:
                    public = (server.folder / "asking.key.pub").read_text().strip()
                    device.environment["SERVER_KEY"] = public
        else:
            for device in devices:
                (device.begin if name.startswith("device: start") else device.type)(name)


def left_of(device: Machine) -> set[tuple[float, float]]:
    """What each client of a device is told: ε as its policy counts it, and what is left."""
    rows = [line.split("│") for line in device.type(SPENT).splitlines() if "│" in line]
    return {tuple(float(cell) for cell in row[-3:-1]) for row in rows}


@pytest.mark.federation
def test_three_devices_learn_twice_from_nothing_and_know_what_is_left(machines):
    server, devices = machines
    set_up(server, devices)
    seen: set[Path] = set()
    for counted, left in ((4.0, 4.5), (6.0, 2.5)):
        server.type(RUN)
        (folder,) = set((server.folder / "runs").iterdir()) - seen
        seen.add(folder)
        metrics = json.loads((folder / "metrics.json").read_text())
        lines = (folder / "rounds.jsonl").read_text().splitlines()
        (row,) = [json.loads(line) for line in lines][1:]
        assert row["answered"] == CLIENTS and row["failed"] == {}
        assert metrics["accuracy"] > 0.5, metrics  # chance is 0.1
        for device in devices:
            (told,) = left_of(device)
            assert told == pytest.approx((counted, left), abs=0.05)
            ledger_of = Path(device.environment["STATE"]) / "ledger.sqlite"
            with Ledger(ledger_of, create=False) as ledger:
                ledger.verify()
                assert len(ledger.clients()) == CLIENTS // DEVICES
                kinds = Counter(entry.kind for entry in ledger.entries(run=folder.name))
                assert kinds["run"] == 1 and kinds["question"] >= 1 <= kinds["confirmed"]
                pinned = device.environment["SERVER_KEY"]
                assert ledger.run_header(folder.name).header.server == pinned
            model, told_of_model = received_model(ledger_of.parent)
            assert told_of_model.startswith(f"run {folder.name}, received ")
            images = digits().test.images[:50]
            assert np.array_equal(model.logits(images), SavedModel.load(folder).logits(images))


def test_the_policy_of_the_page_has_room_for_three_runs_and_not_for_a_fourth():
    policy = Policy.load(PROJECT / "deploy" / "policy.three-devices.yaml")
    assert policy.defect is None
    mu = 0.9249308976669366  # of a Gaussian of ε = 4 at δ = 10⁻⁵ (Balle and Wang 2018, theorem 8)
    spends = [
        epsilon(GaussianEvent(1 / (mu * math.sqrt(runs))), policy.delta, Threat.LOCAL).epsilon
        for runs in range(1, 5)
    ]
    assert [round(spend, 2) for spend in spends] == [4.0, 5.99, 7.63, 9.08]
    assert spends[0] < policy.epsilon_per_release["votes"]
    assert spends[2] < policy.epsilon_per_lifetime < spends[3]


@pytest.mark.parametrize("side", ["server", "device"])
def test_what_is_installed_exists(side):
    (commands,) = (BLOCKS[name] for name in ORDER if name.startswith(f"{side}: install"))
    program, word, *rest = shlex.split(commands, comments=True)
    assert (program, word) == ("pip", "install")
    extras = re.findall(r"\[(.+)\]", rest[-1])
    known = (PROJECT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in known for extra in extras)
