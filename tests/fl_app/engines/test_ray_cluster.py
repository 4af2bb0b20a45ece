"""An existing Ray cluster of two nodes: runs and sweeps on it equal the inline engine's."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fl_app.engines.ray import RayEngine, RayPool
from fl_app.run.experiment import Experiment
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from tests.fl_app.running import SMALL, run_inline

pytestmark = pytest.mark.federation

MURMUR = Path(sys.executable).parent / "murmur"
WORDS = [*SMALL, "strategy=fedavg"]


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


@pytest.fixture
def pool(cluster, monkeypatch):
    """Two workers, one on each node, of runs in this process."""
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield RayPool.shared(2, 0.0)
    RayPool.end()


def places(pool):
    """Node and process of each worker, by its actor."""
    from ray._private.state import actors

    found = {}
    for actor in pool.actors:
        process = pool._ray.get(actor.process.remote())  # once it is there
        found[actor] = actors(actor._actor_id.hex())["Address"]["NodeID"], process
    return found


@contextmanager
def after_round_1(change):
    """``change`` is called once round 1 of a run in this process is over."""
    plainly = Experiment._after_round

    def changing(self, number, *arguments):
        found = plainly(self, number, *arguments)
        if number == 1:
            change()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Experiment, "_after_round", changing)
        yield


def require_equal_to_inline(run, inline):
    assert [row["failed"] for row in run.rows()] == [{}] * len(inline.rows())
    assert weights(run.path) == weights(inline.path)
    assert run.statement()["guarantees"] == inline.statement()["guarantees"]


def weights(folder):
    return {name: w.tobytes() for name, w in load_file(folder / "model/model.safetensors").items()}


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


def test_a_worker_of_the_second_node_killed_in_a_round_changes_nothing(tmp_path, cluster, pool):
    [second] = cluster.worker_nodes
    before = places(pool)
    [victim] = [actor for actor, (node, _) in before.items() if node == second.node_id]
    process = before[victim][1]
    killer = threading.Timer(1, os.kill, (process, signal.SIGKILL))

    def stop():
        os.kill(process, signal.SIGSTOP)  # it does not answer what round 2 asks
        killer.start()

    run = RunFolder(tmp_path / "cluster")
    with after_round_1(stop):
        RayEngine(workers=2).run(ValidatedRun.of([*WORDS, f"run_dir={run.path}"]))
    killer.join()
    assert places(pool)[victim][1] != process
    require_equal_to_inline(run, run_inline(tmp_path / "inline", "strategy=fedavg"))


def test_a_node_added_between_rounds_takes_over_from_one_that_goes(tmp_path, cluster, pool):
    [second] = cluster.worker_nodes
    added = []

    def change():
        added.append(cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20))
        cluster.remove_node(second)

    run = RunFolder(tmp_path / "cluster")
    with after_round_1(change):
        RayEngine(workers=2).run(ValidatedRun.of([*WORDS, f"run_dir={run.path}"]))
    nodes = {node for node, _ in places(pool).values()}
    assert nodes == {cluster.head_node.node_id, added[0].node_id}
    require_equal_to_inline(run, run_inline(tmp_path / "inline", "strategy=fedavg"))
