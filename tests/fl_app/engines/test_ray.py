"""Ray's workers stay from run to run, are replaced when they die, and change no result."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from safetensors.numpy import load_file

from fl_app.config.errors import ConfigError
from fl_app.engines import ray as ray_engine
from fl_app.engines import ray_start
from fl_app.engines.ray import RayEngine, RayPool
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from murmur.privacy.ledger import Ledger
from tests.federation.loopback import wait_for
from tests.fl_app.running import SMALL, run_inline, settled

WORDS = [word for word in SMALL if not word.startswith("engine")]
MURMUR = str(Path(sys.executable).parent / "murmur")


@pytest.fixture
def engine():
    yield RayEngine(workers=2)
    if RayPool._shared is not None:
        RayPool._shared.stop()


def weights(folder):
    return {name: w.tobytes() for name, w in load_file(folder / "model/model.safetensors").items()}


def measured(folder):
    """What canary clients measured, against each adversary."""
    statement = json.loads((folder.path / "privacy.json").read_text())
    return [guarantee.get("canaries") for guarantee in statement["guarantees"]]


def test_workers_serve_run_after_run_with_the_results_of_the_inline_engine(tmp_path, engine):
    pools = []
    protected = ["protection=distributed", "privacy.epsilon=20"]
    for strategy, more in {
        "privatekt": [],
        "scaffold": [],
        "fedadam": protected,
        "dp_ftrl": ["model=linear", "audit=canaries"],
    }.items():
        folder = RunFolder(tmp_path / f"ray-{strategy}")
        words = [f"strategy={strategy}", *more]
        engine.run(ValidatedRun.of([*settled([*WORDS, *words]), f"run_dir={folder.path}"]))
        pools.append(RayPool._shared)
        inline = run_inline(tmp_path / f"inline-{strategy}", *words)
        for run in (folder, inline):
            assert [row["failed"] for row in run.rows()] == [{}, {}, {}]
            assert [row["answered"] for row in run.rows()] == [0, 6, 6]
        assert folder.metrics()["accuracy"] == inline.metrics()["accuracy"]
        assert weights(folder.path) == weights(inline.path)
        assert measured(folder) == measured(inline)
    assert measured(inline)[0]["count"] == 64
    assert len(set(map(id, pools))) == 1


def test_a_large_array_is_put_into_rays_memory_once_and_read_there(tmp_path, monkeypatch, engine):
    words = ["strategy=fedavg", "protection=distributed", "privacy.epsilon=20"]
    words += ["privacy.secure_aggregation=on"]
    inline = run_inline(tmp_path / "inline", *words)
    sent, received = [], []
    place, answer = ray_engine._in_place, RayPool.answer

    def placed(array):
        sent.append((array.shape, place(array)))
        return sent[-1][1]

    def answered(self, *question):
        reply = answer(self, *question)
        for record in reply.content.array_records.values():
            received.extend(type(array.data) for array in record.values())
        return reply

    monkeypatch.setattr(ray_engine, "LARGE_ARRAY", 1_000)
    monkeypatch.setattr(ray_engine, "_in_place", placed)
    monkeypatch.setattr(RayPool, "answer", answered)
    folder = RunFolder(tmp_path / "ray")
    run = ValidatedRun.of([*settled([*WORDS, *words]), f"run_dir={folder.path}"])
    RayEngine(workers=2, nodes=6).run(run)
    assert weights(folder.path) == weights(inline.path)
    size = max(shape for shape, _ in sent)
    models = [where for shape, where in sent if shape == size]
    assert len(models) == 12 and len(set(models)) == 2  # to each node in each of two rounds
    assert all(isinstance(parts, tuple) for shape, parts in sent if shape != size)  # a norm
    assert received == [memoryview] * 12


def test_a_worker_killed_while_it_answers_is_replaced_and_its_clients_pay_once(tmp_path, engine):
    words = settled([*WORDS, "federation.num_rounds=6"])
    folder = RunFolder(tmp_path / "ray")
    killed = []

    def kill():
        wait_for(lambda: len(folder.rows()) > 2, 120, "a round")
        pool = RayPool._shared
        for worker in pool.actors:  # one after the other, in the middle of whatever it does
            process = pool._ray.get(worker.process.remote())
            os.kill(process, signal.SIGKILL)
            killed.append(process)

    killer = threading.Thread(target=kill)
    killer.start()
    engine.run(ValidatedRun.of([*words, f"run_dir={folder.path}"]))
    killer.join()
    assert len(killed) == 2
    inline = run_inline(tmp_path / "inline", "federation.num_rounds=6")
    assert [row["failed"] for row in folder.rows()] == [{}] * 7
    assert weights(folder.path) == weights(inline.path)
    with Ledger(folder.path / "ledger.sqlite") as ledger:
        assert all(len(ledger.events(client)) == 6 for client in ledger.clients())


VICTIMS = {
    "murmur": lambda family: family[0],
    "Ray's head": lambda family: mentioning(family, "engines.ray_head"),
    "gcs": lambda family: mentioning(family, "gcs/gcs_server"),
    "raylet": lambda family: mentioning(family, "raylet/raylet"),
    "worker": lambda family: family[-1],
}


def mentioning(family, word):
    return next(each for each in family if word in " ".join(each.cmdline()))


@pytest.mark.federation
@pytest.mark.parametrize("victim", VICTIMS)
def test_whoever_is_killed_the_rest_ends_or_the_run_is_undisturbed(tmp_path, victim):
    rounds = 60 if victim == "worker" else 10000
    words = settled([*WORDS, f"federation.num_rounds={rounds}", "engine.workers=2"])
    run = RunFolder(tmp_path / "run")
    murmur = psutil.Popen(
        [MURMUR, "engine=ray", *words, f"run_dir={run.path}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: len(run.rows()) > 2 or murmur.poll() is not None, 120, "a round")
    family = [murmur, *murmur.children(recursive=True)]
    forked = [p for p in family[1:] if "engine=ray" in p.cmdline()]
    family = [p for p in family if p not in forked] + sorted(forked, key=lambda p: p.create_time())
    VICTIMS[victim](family).kill()
    deadline = time.monotonic() + (120 if victim == "worker" else 10)
    while time.monotonic() < deadline and any(alive(each) for each in family):
        murmur.poll()
        time.sleep(0.05)
    assert [each for each in family if alive(each)] == []
    if victim == "worker":
        inline = run_inline(tmp_path / "inline", f"federation.num_rounds={rounds}")
        assert weights(run.path) == weights(inline.path)


def alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_ray_that_somebody_has_imported_before_is_refused_in_words(monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray_start, "_password", {})
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with pytest.raises(ConfigError, match=r"^engine=ray: Ray was imported"):
        RayEngine().begin()
