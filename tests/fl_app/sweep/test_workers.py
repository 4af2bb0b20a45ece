"""A plain sweep's worker processes: they end with the command, and a lost one costs its own job."""

import os
import signal

import psutil
import pytest

from fl_app.sweep import workers
from fl_app.sweep.sweep import Sweep

WORDS = [
    "engine=inline",
    "federation.num_clients=4",
    "strategy.local.epochs=1",
    "privacy.noise=seeded",
]


@pytest.fixture
def sweep(tmp_path):
    words = [*WORDS, "federation.num_rounds=1", "seed=1,2,3", f"results_dir={tmp_path}"]
    plan = Sweep.plan(words)
    plan.begin()
    return plan


def test_a_worker_that_is_killed_costs_its_own_job_and_is_replaced(sweep, monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 1)
    begin, killed = workers._Worker.begin, []

    def kill_the_first(self, job):
        begin(self, job)
        if not killed:
            killed.append(self.process.pid)
            os.kill(self.process.pid, signal.SIGKILL)

    monkeypatch.setattr(workers._Worker, "begin", kill_the_first)
    workers.run_jobs(sweep)
    errors = [sweep.folder.error(job) for job in sweep.jobs]
    assert errors == ["RuntimeError: its process ended with status -9", None, None]
    assert sweep.folder.finished(sweep.jobs) == sweep.jobs[1:]
    assert sweep.unfinished() == [sweep.jobs[0].overrides]
    assert not any(psutil.pid_exists(pid) for pid in killed)


def test_results_on_three_workers_equal_those_of_one_process(sweep, monkeypatch, tmp_path):
    monkeypatch.setattr(workers, "cores", lambda: 3)
    workers.run_jobs(sweep)
    serial = Sweep.plan([*sweep.overrides[:-1], f"results_dir={tmp_path / 'serial'}"])
    serial.begin()
    for words in serial.unfinished():
        workers.run_job(words, serial.folder, tmp_path)
    for job in sweep.jobs:
        models = [s.folder.path / job.key / "model.safetensors" for s in (sweep, serial)]
        assert models[0].read_bytes() == models[1].read_bytes()
