"""Three real devices under `murmur guard` and an app that knows nothing of Murmur on its client."""

import re

import pytest

from murmur.privacy.ledger import Ledger
from tests.federation.loopback import NAME, Federation, wait_for
from tests.fl_app.device.bundles import NUMPY, PROJECT, TASK
from tests.guarded_devices import GUARD, needs_lock
from tests.murmur.flower.nodes import POLICY

pytestmark = [needs_lock, pytest.mark.federation]

APP_SECONDS, ANSWER_SECONDS = 60, 75
SERVER = """
import json
import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from murmur.flower import private

app = ServerApp()

@app.main()
def main(grid, context):
    strategy = private(
        FedAvg(fraction_evaluate=0.0, min_available_nodes=3), epsilon=8, delta=1e-5, clip=1.0,
        metrics={"loss": (0, 1)},
    )
    model = ArrayRecord([np.zeros(3, np.float32)])
    result = strategy.start(grid, model, num_rounds=1)
    told = {"arrays": result.arrays.to_numpy_ndarrays()[0].tolist()}
    told["metrics"] = dict(result.train_metrics_clientapp[1])
    open(context.run_config["result"], "w").write(json.dumps(told))
"""


@pytest.fixture
def federation(tmp_path):
    with Federation(tmp_path / "federation") as running:
        running.start_link(MURMUR_RESULTS=str(tmp_path / "results"))
        for number in range(3):
            own = tmp_path / f"device-{number}"
            data = tmp_path / f"data-{number}"
            own.mkdir()
            data.mkdir()
            (data / "table.csv").write_text("1,2,3\n")
            guard = GUARD.replace("SECONDS", str(APP_SECONDS)).replace("400", str(ANSWER_SECONDS))
            policy = POLICY.replace("honest_app", "none_such") + guard.replace("DATA", str(data))
            (own / "policy.yaml").write_text(policy)
            config = {"data": str(data)}
            command = ["murmur", "guard", "--device", str(own)]
            running.start_node(number, running.enrol(number), config, device=command)
        wait_for(lambda: running.online() == 3, 300, "three nodes")
        yield running


def test_an_unmodified_client_runs_on_three_devices_and_they_answer_on_time(federation, tmp_path):
    app = tmp_path / "app"
    (app / "plain").mkdir(parents=True)
    result = tmp_path / "result.json"
    files = {"__init__": "", "client_app": NUMPY, "task": TASK, "server_app": SERVER}
    for name, text in files.items():
        (app / "plain" / f"{name}.py").write_text(text)
    (app / "pyproject.toml").write_text(
        f'{PROJECT}\n[tool.flwr.app.config]\nresult = ""\n[build-system]\nrequires = []\n'
    )
    federation.flwr("run", str(app), NAME, "--stream", "--run-config", f'result="{result}"')
    wait_for(result.exists, 600, f"the run: {federation.story()}")
    said = next((tmp_path / "results").rglob("privacy.txt")).read_text()
    assert "ε = 8 in total" in said and "bundle is honest" not in said
    for number in range(3):
        with Ledger(tmp_path / f"device-{number}" / "ledger.sqlite", create=False) as ledger:
            assert ledger.releases() == 1
        took = [
            float(t)
            for t in re.findall(r"answered, ([\d.]+) s", federation.log(f"device-{number}"))
        ]
        assert len([seconds for seconds in took if seconds >= ANSWER_SECONDS]) == 1
        assert len(took) >= 6  # the phases of the protocol start no app
