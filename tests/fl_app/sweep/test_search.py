"""A search says which trial is best and what choosing it costs; charged, it counts that."""

import json
import re
import shlex
import sys

import pytest

from fl_app.cli import main
from fl_app.sweep import search
from murmur.privacy.accounting import Threat, View
from murmur.privacy.accounting.best_of import epsilon_of_all, epsilon_of_best
from murmur.privacy.events import Adjacency, Unit, event_from_dict

pytest.importorskip("optuna")
SMALL = [
    *("engine=inline", "federation.num_clients=4", "federation.num_rounds=1"),
    *("strategy.local.epochs=1", "hydra/launcher=basic", "hydra/sweeper=optuna"),
    "hydra.sweeper.n_jobs=1",
]
SPACE = "strategy.K=choice(1,2,4)"


@pytest.fixture
def murmur(tmp_path, monkeypatch, capfd):
    """Call `murmur` in this process, in a folder of its own; exit status and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["murmur"])
        status = main(words)
        return status, capfd.readouterr()

    return call


def only_sweep(root):
    [folder] = (root / "runs").glob("sweep-*")
    return folder


def metrics(folder):
    jobs = json.loads((folder / "sweep.json").read_text())["jobs"]
    return [json.loads((folder / job["key"] / "metrics.json").read_text()) for job in jobs], jobs


def test_a_search_counts_trials_chooses_on_validation_data_and_prints_its_best(murmur, tmp_path):
    words = [*SMALL, "hydra.sweeper.n_trials=3", "hydra.sweeper.sampler.seed=1"]
    space = "strategy.local.learning_rate=interval(0.01,0.5)"
    status, printed = murmur("-m", *words, space)
    assert status == 0, printed.err
    assert re.findall(r"^trial (\d) of (\d)  ", printed.out, re.M) == [
        ("1", "3"),
        ("2", "3"),
        ("3", "3"),
    ]
    found, jobs = metrics(only_sweep(tmp_path))
    for job in jobs:
        assert {"federation.score=validation", "federation.validation=200"} <= set(job["overrides"])
    reached = [each["accuracy_last_5"] for each in found]
    number = reached.index(max(reached))
    lines = printed.out.splitlines()
    [best] = [line for line in lines if line.startswith("best: ")]
    assert f"trial {number + 1} of 3, accuracy {max(reached):.3f} on validation data" in best
    [again] = [line for line in lines if line.startswith("again: murmur ")]
    typed = shlex.split(again.removeprefix("again: murmur "))
    [rate] = [w for w in jobs[number]["overrides"] if w.startswith("strategy.local.learning_rate")]
    assert rate in typed and "federation.score=test" in typed
    status, printed_again = murmur(*typed, "run_dir=again")  # and it is a command
    assert status == 0, printed_again.err
    notes = [line for line in lines if "is a release that no ε here counts" in line]
    assert len(notes) == 1 and "privacy.search=charged" in notes[0]


def test_what_a_command_says_about_its_choices_stands(murmur, tmp_path):
    words = [*SMALL, "hydra.sweeper.n_trials=1", "federation.score=test", SPACE]
    status, printed = murmur("-m", *words)
    assert status == 0, printed.err
    assert "on test data" in printed.out and "flatters" in printed.out
    status, printed = murmur("-m", *words, "hydra.sweeper.direction=minimize")
    assert status == 2 and "hydra.sweeper.direction=minimize: must be maximize" in printed.err


def test_a_charged_search_draws_its_trials_and_counts_the_choice(murmur, tmp_path, monkeypatch):
    monkeypatch.setattr("murmur.privacy.accounting.best_of.draw_trials", lambda mean: 4)
    words = [*SMALL, "privacy.search=charged", "privacy.epsilon=2", SPACE]
    status, printed = murmur("-m", *words, "hydra.sweeper.n_trials=3")
    assert status == 0, printed.err
    folder = only_sweep(tmp_path)
    _, jobs = metrics(folder)
    assert len(jobs) == 4  # three settings: one was drawn twice, and done twice
    assert len({tuple(job["overrides"]) for job in jobs}) < 4
    said = (folder / "search.txt").read_text()
    assert said in printed.out.replace("\r", "")
    assert "theorem 2" in said and "Papernot and Steinke 2022" in said
    assert "truncated negative binomial" in said and "mean 3" in said
    assert "only the best trial's model is published" in said
    runs = {"local": [], "secure_aggregation": []}
    for job in jobs:
        for each in json.loads((folder / job["key"] / "released.json").read_text()):
            runs[each["threat"]].append([event_from_dict(each["event"])])
    view = View(Threat.CENTRAL, Adjacency.REPLACE_ONE, Unit.CLIENT, None)
    best = epsilon_of_best(runs["secure_aggregation"], 3, 1e-5, view)
    every = epsilon_of_all(runs["local"], 1e-5, View(Threat.LOCAL, view.adjacency, view.unit, None))
    [figure] = re.findall(r"ε of the search: ([\d.]+) against whoever sees the published", said)
    assert best <= float(figure) <= best * 1.01 and best > 2
    [figure] = re.findall(r"ε of all 4 trials: ([\d.]+) against a server that reads every", said)
    assert every <= float(figure) <= every * 1.01
    before = [path.stat().st_mtime_ns for path in sorted(folder.glob("*/metrics.json"))]
    status, printed = murmur("-m", *words, "hydra.sweeper.n_trials=3")  # the same trials again
    assert status == 0, printed.err
    after = [path.stat().st_mtime_ns for path in sorted(folder.glob("*/metrics.json"))]
    assert after == before


def test_a_charged_search_with_a_trial_missing_states_no_epsilon(murmur, tmp_path, monkeypatch):
    """Its trial has released what nobody has counted, and the best of the rest is another draw."""
    monkeypatch.setattr("murmur.privacy.accounting.best_of.draw_trials", lambda mean: 2)
    words = [*SMALL, "privacy.search=charged", "privacy.epsilon=2", SPACE]
    status, printed = murmur("-m", *words, "hydra.sweeper.n_trials=3")
    assert status == 0, printed.err
    folder = only_sweep(tmp_path)
    _, jobs = metrics(folder)
    for name in ("metrics.json", "privacy.json"):
        (folder / jobs[0]["key"] / name).unlink()
    assert search.statement(folder) == [
        "ε of the search: not stated yet: 1 of 2 trials is finished; the same command goes on"
    ]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["privacy.search=charged"], "privacy.search=charged: counts what the choice"),
        (["-m", "privacy.search=charged", "seed=1,2"], "murmur -m hydra/sweeper=optuna"),
        (
            ["-m", *SMALL, SPACE, "privacy.search=charged", "hydra.sweeper.sampler.seed=1"],
            "hydra.sweeper.sampler.seed=1: privacy.search=charged draws it",
        ),
        (
            ["-m", *SMALL, SPACE, "privacy.search=charged", "hydra/sweeper/sampler=tpe"],
            "hydra/sweeper/sampler=tpe: with privacy.search=charged no trial may depend",
        ),
        (
            ["-m", *SMALL, SPACE, "privacy.search=charged", "privacy.epsilon=inf"],
            "there is nothing to count",
        ),
    ],
)
def test_what_cannot_be_counted_is_refused(murmur, tmp_path, words, named):
    status, printed = murmur(*words)
    assert status == 2 and named in printed.err
    assert not (tmp_path / "runs").exists()
