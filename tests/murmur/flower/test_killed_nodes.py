"""Real SuperNodes and client processes that are killed after their charge: one charge each."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from murmur.privacy.ledger import Ledger
from tests.federation.devices import PATIENCE, VICTIM, Devices
from tests.federation.loopback import NAME, Federation, wait_for
from tests.fl_app.device.bundles import PROJECT
from tests.murmur.flower.nodes import POLICY

pytestmark = [pytest.mark.federation, pytest.mark.long]

CLIENT = """
import os, time
from pathlib import Path
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from murmur.flower import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    drill = Path(context.run_config["drill"])
    number = message.content["config"]["server-round"]
    if context.node_config["partition-id"] == context.run_config["victim"]:
        (drill / f"writing-{number}").write_text(str(os.getpid()))
        (drill / f"writing-{number}").rename(drill / f"round-{number}")
        while not (drill / "go-on").exists():
            time.sleep(0.1)
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    found = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord([weights + 1]), "metrics": found})
    return Message(content, reply_to=message)
"""

SERVER = """
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from murmur.flower import private

app = ServerApp()

@app.main()
def main(grid, context):
    every = {"min_train_nodes": 3, "min_available_nodes": 3}
    strategy = private(FedAvg(fraction_evaluate=0.0, **every), epsilon=8, delta=1e-5, clip=1.0)
    strategy.start(grid, ArrayRecord([np.zeros(3, np.float32)]), num_rounds=3, timeout=600)
"""


class Nodes(Devices):
    """Three SuperNodes that start the app of the run for each message."""

    def start_node(self, client: int, port: int | None = None) -> subprocess.Popen:
        key = self.federation.folder / f"node-{client}.key"
        config = {"partition-id": client, "murmur": str(self.owned(client))}
        return self.federation.start_node(client, key, config, port=port, runs_sent_code=True)

    def owned(self, client: int) -> Path:
        """Its owner's folder."""
        return self.federation.folder / f"owner-{client}"


@pytest.fixture
def nodes(tmp_path):
    with Federation(tmp_path / "federation") as running:
        running.start_link()
        found = Nodes(running)
        for client in range(3):
            found.owned(client).mkdir()
            (found.owned(client) / "policy.yaml").write_text(POLICY)
            running.enrol(client)
            found.start_node(client)
        wait_for(lambda: running.online() == 3, PATIENCE, "three nodes")
        yield found


def test_who_is_killed_after_a_charge_pays_once_and_answers_once(nodes, tmp_path):
    """Round 1: the client's process. Round 2: the SuperNode with all that it started. Round 3:
    nobody."""
    federation = nodes.federation
    drill = tmp_path / "drill"
    drill.mkdir()
    app = tmp_path / "app"
    (app / "plain").mkdir(parents=True)
    for name, text in {"__init__": "", "client_app": CLIENT, "server_app": SERVER}.items():
        (app / "plain" / f"{name}.py").write_text(text)
    config = f'[tool.flwr.app.config]\ndrill = "{drill}"\nvictim = {VICTIM}\n'
    (app / "pyproject.toml").write_text(f"{PROJECT}\n{config}[build-system]\nrequires = []\n")
    log = tmp_path / "log"
    with log.open("wb") as output:
        run = subprocess.Popen(
            ["flwr", "run", str(app), NAME, "--stream"],
            env=federation.environment,
            stdout=output,
            stderr=output,
        )
    try:
        wait_for((drill / "round-1").exists, PATIENCE, f"round 1: {federation.story()}")
        os.kill(int((drill / "round-1").read_text()), signal.SIGKILL)
        wait_for((drill / "round-2").exists, PATIENCE, f"round 2: {federation.story()}")
        federation.kill(f"node-{VICTIM}")
        (drill / "go-on").touch()
        nodes.revive()
        run.wait(PATIENCE)
    finally:
        run.kill()
        run.wait()
    printed = log.read_text()
    assert "round 1 was lost" in printed and "round 2 was lost" in printed, printed
    assert printed.count("aggregate_train: Received 0 results and 3 failures") == 2, printed
    assert printed.count("aggregate_train: Received 3 results and 0 failures") == 1, printed
    for client in range(3):
        with Ledger(nodes.owned(client) / "ledger.sqlite", create=False) as ledger:
            ledger.verify()
            rounds = {"charge": [], "answer": []}
            for entry in ledger.entries():
                if entry.kind in rounds:
                    rounds[entry.kind].append(entry.round)
        answered = [3] if client == VICTIM else [1, 2, 3]
        assert rounds == {"charge": [1, 2, 3], "answer": answered}, client
