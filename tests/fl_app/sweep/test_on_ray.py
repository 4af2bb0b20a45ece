"""A plain sweep on Ray: its jobs end with the command, and a lost process costs no job."""

import sys

import pytest

from fl_app.cli import main
from fl_app.engines.ray import RayPool
from fl_app.sweep import on_ray
from fl_app.sweep.sweep import Sweep

WORDS = [
    "engine=inline",
    "strategy=privatekt",
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


def models(sweep):
    files = [sweep.folder.path / job.key / "model/model.safetensors" for job in sweep.jobs]
    return [file.read_bytes() for file in files]


def test_results_on_ray_equal_those_of_one_process(sweep, tmp_path):
    on_ray.run_jobs(sweep)
    serial = Sweep.plan([*sweep.overrides[:-1], f"results_dir={tmp_path / 'serial'}"])
    serial.begin()
    for job in serial.unfinished():
        on_ray.run_job(job, serial.folder, tmp_path)
    assert models(sweep) == models(serial)
    assert sweep.unfinished() == []


def test_a_pool_that_holds_the_cores_makes_room_for_a_sweep(sweep):
    pool = RayPool.shared(on_ray.cores(), 0)
    assert len(pool.actors) == on_ray.cores()
    on_ray.run_jobs(sweep)
    assert sweep.folder.finished(sweep.jobs) == sweep.jobs


def test_jobs_that_keep_all_cores_busy_come_one_after_the_other(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(on_ray, "run_job", lambda job, *_: done.append(job.overrides[-2]))
    monkeypatch.setattr(on_ray, "run_on_ray", lambda *_: pytest.fail("are no tasks"))
    sweep = Sweep.plan(["engine=ray", "seed=1,2", f"results_dir={tmp_path}"])
    on_ray.run_jobs(sweep)
    assert done == ["seed=1", "seed=2"]


def test_nothing_is_started_for_a_sweep_that_is_finished(sweep, monkeypatch):
    for job in sweep.jobs:
        (sweep.folder.path / job.key).mkdir()
        (sweep.folder.path / job.key / "metrics.json").write_text("{}")
    monkeypatch.setattr(on_ray, "run_on_ray", lambda *_: pytest.fail("nothing is left to do"))
    on_ray.run_jobs(sweep)


def test_an_own_folder_goes_with_the_jobs(tmp_path, monkeypatch, capsys):
    """Ray of this process has started without it."""
    (tmp_path / "own" / "conf" / "model").mkdir(parents=True)
    yaml = "# A model.\n_target_: .nets.net\n_partial_: true\n"
    (tmp_path / "own" / "conf" / "model" / "tiny.yaml").write_text(yaml)
    (tmp_path / "own" / "nets.py").write_text(
        "from torch import nn\n\n\ndef net(input_shape, num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))\n"
    )
    monkeypatch.setattr(sys, "argv", ["murmur"])
    words = [*WORDS, "federation.num_rounds=1", "model=tiny", "seed=1,2"]
    folder = ["--config-dir", str(tmp_path / "own")]
    assert main(["-m", *folder, *words, f"results_dir={tmp_path}"]) == 0, capsys.readouterr()
