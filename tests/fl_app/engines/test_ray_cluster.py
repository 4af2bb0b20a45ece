"""An existing Ray cluster of two nodes: runs and sweeps on it equal the inline engine's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.fl_app.running import SMALL, run_inline

pytestmark = pytest.mark.federation

MURMUR = Path(sys.executable).parent / "murmur"


@pytest.fixture
def cluster(monkeypatch):
    """Two Ray nodes of one core each on this machine, as two machines would be."""
    from ray.cluster_utils import Cluster

    # By default Ray's workers give way to everybody: on a busy machine they would hardly run.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    arguments = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 * 2**20}
    nodes = Cluster(initialize_head=True, head_node_args=arguments)
    nodes.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    yield nodes
    nodes.shutdown()


def weights(folder):
    return {name: w.tobytes() for name, w in load_file(folder / "model.safetensors").items()}


def test_run_on_a_cluster_of_two_nodes_equals_inline_bit_for_bit(tmp_path, cluster):
    words = [word for word in SMALL if not word.startswith("engine")]
    words += ["strategy=fedavg", f"run_dir={tmp_path}/cluster"]
    environment = {
        **os.environ,
        "RAY_ADDRESS": cluster.address,
    }
    done = subprocess.run(
        [MURMUR, "engine=ray", "engine.workers=2", *words],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Ray writes an actor's name into its log: each node of the cluster had one of this run.
    logs = Path(cluster.head_node.get_session_dir_path()) / "logs"
    assert sum("actor_name:Worker" in log.read_text() for log in logs.glob("worker-*.out")) == 2
    inline = run_inline(tmp_path / "inline", "strategy=fedavg")
    assert weights(tmp_path / "cluster") == weights(inline.path)


def test_a_sweep_joins_the_cluster_and_finds_what_a_serial_one_does(tmp_path, cluster):
    command = [MURMUR, "-m", *SMALL, "strategy=fedavg", "seed=1,2", "sweep=mine"]
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    for launcher in ("ray", "basic"):
        more = ["hydra/launcher=basic"] if launcher == "basic" else []
        done = subprocess.run(
            [*command, *more, f"results_dir={launcher}"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    jobs = {path.name for path in (tmp_path / "ray" / "sweep-mine").iterdir() if path.is_dir()}
    assert len(jobs) == 2
    for job in jobs:
        found, expected = (tmp_path / name / "sweep-mine" / job for name in ("ray", "basic"))
        assert weights(found) == weights(expected)
    logs = Path(cluster.head_node.get_session_dir_path()) / "logs"
    assert list(logs.glob("worker-*-01000000-*.out"))  # of the first that joined: the sweep
