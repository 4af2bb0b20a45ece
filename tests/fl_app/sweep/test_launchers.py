"""Hydra's launchers and Optuna's sweeper do the same sweep: results come from the folders."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from fl_app.cli import main
from fl_app.sweep import on_ray
from fl_app.sweep.show import AT_CHANCE, VOID
from tests.ended import end_ray
from tests.fl_app.running import damage_job, sweep_table

SMALL = [
    "engine=inline",
    "strategy=privatekt",  # where a test chooses no other
    "tracking=none",
    "federation.num_clients=4",
    "federation.num_rounds=1",
    "strategy.local.epochs=1",
]


@pytest.fixture
def murmur(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["murmur"])
        return main(words)

    return call


def state_of(row):
    """Why a job has no figures; "" where it has, whatever it has learned, and with seeded noise."""
    state = row.get("state", "")
    return "" if set(state.split(", ")) <= {AT_CHANCE, VOID} else state


def states(folder):
    return [state_of(row) for row in sweep_table(folder)]


@pytest.mark.parametrize(
    "words",
    [
        ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
        ["hydra/launcher=submitit_local"],
    ],
)
def test_jobs_in_other_processes_fill_the_same_folder_and_fail_alone(murmur, tmp_path, words):
    damage_job([*SMALL, "sweep=mine", "strategy.K=1,2"], 1)
    assert murmur("-m", *SMALL, *words, "sweep=mine", "strategy.K=1,2") == 1
    good, bad = states(tmp_path / "runs" / "sweep-mine")
    assert good == ""
    assert bad.startswith("failed: ") and "checkpoint.safetensors" in bad


def scores(folder):
    """What every job of a sweep found, without what differs from run to run."""
    return {
        path.parent.name: [
            {key: value for key, value in json.loads(line).items() if "seconds" not in key}
            for line in path.read_text().splitlines()
        ]
        for path in folder.glob("*/rounds.jsonl")
    }


def test_jobs_on_ray_equal_those_of_a_serial_sweep_and_fail_alone(murmur, tmp_path):
    command = ["-m", *SMALL, "sweep=mine", "privacy.noise=seeded", "strategy.K=1,2,3"]
    for folder in ("ray", "serial"):
        damage_job([*command[1:], f"results_dir={folder}"], 2)
    assert murmur(*command, "results_dir=ray") == 1
    *good, bad = states(tmp_path / "ray" / "sweep-mine")
    assert good == ["", ""]
    assert bad.startswith("failed: ") and "checkpoint.safetensors" in bad
    assert murmur(*command, "hydra/launcher=basic", "results_dir=serial") == 1
    found = scores(tmp_path / "ray" / "sweep-mine")
    assert len(found) == 2
    assert found == scores(tmp_path / "serial" / "sweep-mine")


@pytest.mark.parametrize(("retries", "state"), [(0, "failed: WorkerCrashedError"), (1, "")])
def test_a_lost_worker_of_ray_costs_its_own_job_alone(
    murmur, tmp_path, monkeypatch, retries, state
):
    monkeypatch.setattr(on_ray, "MAX_RETRIES", retries)
    sweep = tmp_path / "runs" / "sweep-mine"
    killer = threading.Thread(target=kill_the_process_of_a_job, args=[sweep])
    killer.start()
    # The killed job has too many rounds to end before it is seen.
    status = murmur("-m", *SMALL, "sweep=mine", "federation.num_rounds=40,1")
    killer.join()
    assert status == (1 if retries == 0 else 0)
    rows = {row["num_rounds"]: state_of(row) for row in sweep_table(sweep)}
    assert rows["40"].startswith(state) and bool(rows["40"]) == bool(state)
    assert rows["1"] == ""


def kill_the_process_of_a_job(sweep):
    """Kill whoever has the ledger open of the job that is the first with two rounds on disk."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for rounds in sweep.glob("*/rounds.jsonl"):
            if len(rounds.read_text().splitlines()) < 3:
                continue
            for owner in owners(rounds.with_name("ledger.sqlite")):
                os.kill(owner, signal.SIGKILL)
                return
        time.sleep(0.01)


def owners(path):
    """Other processes that have ``path`` open."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(link.resolve() == path for link in (process / "fd").iterdir()):
                yield int(process.name)
        except OSError:  # it ended meanwhile, or is not ours
            continue


def test_ray_at_a_wrong_address_is_named(murmur, tmp_path, monkeypatch, capfd):
    end_ray()  # of an earlier test: who is connected is not asked for an address
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    assert murmur("-m", *SMALL, "sweep=mine", "strategy.K=1,2") == 2
    printed = capfd.readouterr().err
    assert "RAY_ADDRESS=nowhere: no Ray cluster there" in printed
    assert "Traceback" not in printed


def test_a_search_maximises_accuracy_and_repeats_no_trial(murmur, tmp_path):
    search = [
        "hydra/sweeper=optuna",
        "hydra.sweeper.direction=maximize",
        "hydra.sweeper.n_jobs=1",
        "hydra.sweeper.sampler.seed=1",
        "strategy.local.learning_rate=interval(0.01,0.5)",
    ]
    for trials in (2, 3):
        assert murmur("-m", *SMALL, *search, f"hydra.sweeper.n_trials={trials}") == 0
    [folder] = (tmp_path / "runs").iterdir()
    assert states(folder) == ["", "", ""]
    jobs = json.loads((folder / "sweep.json").read_text())["jobs"]
    accuracies = [
        json.loads((folder / job["key"] / "metrics.json").read_text())["accuracy_last_5"]
        for job in jobs
    ]
    best = (folder / "optimization_results.yaml").read_text()
    assert f"best_value: {max(accuracies)}" in best
