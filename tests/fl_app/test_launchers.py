"""Hydra's launchers and Optuna's sweeper do the same sweep: results come from the folders."""

import json
import sys

import pytest

from fl_app.cli import main

SMALL = [
    "engine=inline",
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


def states(folder):
    lines = (folder / "sweep.md").read_text().splitlines()
    column = [cell.strip() for cell in lines[0].split("|")].index("state")
    return [line.split("|")[column].strip() for line in lines[2:]]


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        ("hydra_joblib_launcher", ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]),
        ("hydra_submitit_launcher", ["hydra/launcher=submitit_local"]),
    ],
)
def test_jobs_in_other_processes_fill_the_same_folder_and_fail_alone(
    murmur, tmp_path, plugin, words
):
    pytest.importorskip(f"hydra_plugins.{plugin}")
    assert murmur("-m", *SMALL, *words, "sweep=mine", "strategy.K=1,400") == 1
    good, bad = states(tmp_path / "runs" / "sweep-mine")
    assert good == "finished"
    assert bad.startswith("failed: strategy.K=400: must lie in 1..360")


def test_a_search_maximises_accuracy_and_repeats_no_trial(murmur, tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
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
    assert states(folder) == ["finished before", "finished before", "finished"]
    jobs = json.loads((folder / "sweep.json").read_text())["jobs"]
    accuracies = [
        json.loads((folder / job["key"] / "metrics.json").read_text())["accuracy_last_5"]
        for job in jobs
    ]
    best = (folder / "optimization_results.yaml").read_text()
    assert f"best_value: {max(accuracies)}" in best
