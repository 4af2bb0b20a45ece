"""A sweep does each job once, whatever is killed; a failure is named and stops nothing."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fl_app.cli import main
from fl_app.sweep.show import AT_CHANCE
from tests.fl_app.running import damage_job, sweep_table

MURMUR = str(Path(sys.executable).parent / "murmur")
SMALL = [
    "engine=inline",
    "strategy=privatekt",  # where a test chooses no other
    "federation.num_clients=4",
    "federation.num_rounds=2",
    "strategy.local.epochs=1",
]


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


def test_the_same_command_finds_its_folder_and_repeats_nothing(murmur, tmp_path):
    command = ["-m", *SMALL, "privacy.epsilon=2,inf", "strategy.K=1,2"]
    status, printed = murmur(*command)
    assert status == 0, printed.err
    folder = only_sweep(tmp_path)
    plan = json.loads((folder / "sweep.json").read_text())
    assert plan["overrides"] == command[1:]
    assert [job["overrides"][-2:] for job in plan["jobs"]] == [
        ["privacy.epsilon=2", "strategy.K=1"],
        ["privacy.epsilon=2", "strategy.K=2"],
        ["privacy.epsilon=inf", "strategy.K=1"],
        ["privacy.epsilon=inf", "strategy.K=2"],
    ]
    for job in plan["jobs"]:
        assert (folder / job["key"] / "privacy.json").exists()
    assert [row["ε spent"] for row in sweep_table(folder)] == ["2", "2", "∞", "∞"]
    for job, row in zip(plan["jobs"], sweep_table(folder), strict=True):
        at_chance = json.loads((folder / job["key"] / "metrics.json").read_text())["at_chance"]
        assert row.get("state", "") == (AT_CHANCE if at_chance else "")
    assert "job 4/4  " in printed.out
    assert "  privacy.epsilon=inf strategy.K=2  accuracy" in printed.out

    # The order of the words and the engine's settings do not make it another sweep.
    before = stamps(folder)
    status, printed = murmur(command[0], *reversed(command[1:]), "engine.workers=2")
    assert status == 0
    assert "4 of 4 jobs are finished: skipped" in printed.out
    assert only_sweep(tmp_path) == folder
    assert stamps(folder) == before
    assert len(sweep_table(folder)) == 4


def stamps(folder):
    """When results were written; a ledger is closed later, by whoever still has it open."""
    written = [path for path in folder.glob("*/*") if "ledger" not in path.name]
    return {path: path.stat().st_mtime_ns for path in written}


def test_a_failed_job_is_named_and_does_not_stop_the_rest(murmur, tmp_path):
    command = [*SMALL, "strategy.K=2,1"]
    damage_job(command, 0)
    for _ in range(2):
        status, printed = murmur("-m", *command)
        assert status == 1
        good, bad = sweep_table(only_sweep(tmp_path))
        assert (good["K"], bad["K"]) == ("1", "2")
        assert bad["state"].startswith("failed: ") and "checkpoint.safetensors" in bad["state"]
        assert "strategy.K=2  failed: " in printed.out


def test_jobs_whose_privacy_is_void_say_so(murmur, tmp_path):
    status, printed = murmur("-m", *SMALL, "seed=1,2", "privacy.noise=seeded")
    assert status == 0, printed.err
    rows = sweep_table(only_sweep(tmp_path))
    assert len(rows) == 3 and all("privacy void" in row["state"] for row in rows)
    assert not any("ε spent" in row for row in rows)


def test_all_jobs_are_checked_before_the_first_one_starts(murmur, tmp_path):
    status, printed = murmur("-m", *SMALL, "seed=1,2", "privacy.epsilon=0,1", "strategy.K=1,400")
    assert status == 2
    head, *lines = printed.err.splitlines()
    assert head == "murmur: 3 of 4 settings cannot run, so nothing was started:"
    named = [line.strip().partition(": ")[0::2] for line in lines]
    assert [name for name, _ in named] == [
        "privacy.epsilon=0 strategy.K=1",
        "privacy.epsilon=0 strategy.K=400",
        "privacy.epsilon=1 strategy.K=400",
    ]
    assert named[0][1].startswith("privacy.epsilon=0: must be")
    assert named[2][1].startswith("strategy.K=400: must lie in 1..360")
    assert not (tmp_path / "runs").exists()


def test_every_job_that_cannot_be_composed_is_named_before_anything_is_built(
    murmur, tmp_path, monkeypatch
):
    def built(*words):
        raise AssertionError("a job was built")

    monkeypatch.setattr("fl_app.run.prepare.validated", built)
    words = ["seed=1,2", "strategy=privatekt,privatkt", "federation.num_rounds=2,0"]
    status, printed = murmur("-m", "engine=inline", "federation.num_clients=4", *words)
    assert status == 2
    _, *lines = printed.err.splitlines()
    assert [line.strip().partition(": ")[0] for line in lines] == [
        "strategy=privatkt federation.num_rounds=2",
        "strategy=privatkt federation.num_rounds=0",
    ]
    assert not (tmp_path / "runs").exists()


def test_what_each_setting_is_expected_to_reach_is_said_once_before_the_first_job(murmur, tmp_path):
    status, printed = murmur("-m", *SMALL, "seed=1,2", "privacy.epsilon=1,4")
    assert status == 0, printed.err
    lines = [line for line in printed.out.splitlines() if ": expected: " in line]
    assert [line.partition(": ")[0] for line in lines] == ["privacy.epsilon=1", "privacy.epsilon=4"]
    assert printed.out.index(lines[-1]) < printed.out.index("job 1/4")


def test_a_table_has_one_promise_and_its_means_over_seeds(murmur, tmp_path):
    command = ["-m", *SMALL, "strategy=privatekt,dp_fedavg", "seed=1,2", "privacy.epsilon=3"]
    status, printed = murmur(*command)
    assert status == 0, printed.err
    rows = sweep_table(only_sweep(tmp_path))
    promises = {row["strategy"]: row["promise"] for row in rows}
    privatekt = "exchanged for anything else, against a server that reads every message, δ = 1e-05"
    assert promises["privatekt"].endswith(privatekt)
    assert promises["dp_fedavg"].endswith("against whoever sees the published models, δ = 1e-05")
    for strategy in ("privatekt", "dp_fedavg"):
        one, two, both = [row for row in rows if row["strategy"] == strategy]
        scores = [float(row["accuracy, last 5 rounds"]) for row in (one, two)]
        middle = sum(scores) / 2
        half = 12.7062 * abs(scores[0] - scores[1]) / 2  # Student's t, one degree of freedom
        said = re.findall(r"[\d.]+", both["accuracy, last 5 rounds"])
        expected = [middle, half]
        if not half <= middle <= 1 - half:
            expected = [middle, max(0, middle - half), min(1, middle + half)]
        assert list(map(float, said)) == pytest.approx(expected, abs=2e-3)
        assert both["seed"] == "2 seeds"
        assert not both.get("state") and "budget ε" not in both  # empty, or the same in all
    assert "±: half of the 95% interval of the mean over seeds" in printed.out
    last = printed.out.strip().splitlines()[-1]
    assert last.startswith("next:  murmur report ")


def test_a_named_sweep_grows(murmur, tmp_path):
    for seed in (1, 2):
        status, _ = murmur("-m", *SMALL, "sweep=mine", f"seed={seed}", "strategy.K=1,2")
        assert status == 0
    rows = sweep_table(tmp_path / "runs" / "sweep-mine")
    single = [(row["seed"], row["K"]) for row in rows if "seed" not in row["seed"]]
    assert single == [("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["-m", "seed=1,2", "run_dir=here"], ["run_dir=here", "results_dir=PATH"]),
        (["-m", "seed=1,2", "sweep=../mine"], ["sweep=../mine", "letters"]),
        (["sweep=mine"], ["sweep=mine", "murmur -m"]),
        (["-m", "strategy=privatekt,privatkt"], ["strategy=privatkt"]),
    ],
)
def test_a_wrong_command_leaves_nothing(murmur, tmp_path, words, named):
    status, printed = murmur("engine=inline", *words)
    assert status == 2
    for word in named:
        assert word in printed.err
    assert not (tmp_path / "runs").exists()


def test_a_killed_sweep_goes_on_without_repeating_a_finished_job(tmp_path):
    command = [MURMUR, "-m", *SMALL, "federation.num_rounds=16", "seed=1,2,3"]
    # On one core, so that one job ends before the next begins.
    core = {min(os.sched_getaffinity(0))}
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, core),
    )
    try:
        wait_for(lambda: len(list(tmp_path.glob("runs/*/*/metrics.json"))) == 1, process)
        # Another job is under way: some of its rounds are on disk.
        wait_for(lambda: len(list(tmp_path.glob("runs/*/*/checkpoint.safetensors"))) >= 2, process)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    folder = only_sweep(tmp_path)
    [finished] = [path.parent for path in folder.glob("*/metrics.json")]
    before = {path: at for path, at in stamps(folder).items() if path.parent == finished}
    half = next(p.parent for p in folder.glob("*/checkpoint.safetensors") if p.parent != finished)
    rounds = (half / "rounds.jsonl").read_text().splitlines()[:-1]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1 of 3 jobs are finished: skipped" in done.stdout
    after = {path: at for path, at in stamps(folder).items() if path.parent == finished}
    assert after == before
    assert [row["seed"] for row in sweep_table(folder)] == ["1", "2", "3", "3 seeds"]
    resumed = (half / "rounds.jsonl").read_text().splitlines()
    assert resumed[: len(rounds)] == rounds
    assert [json.loads(row)["round"] for row in resumed] == list(range(17))


def wait_for(condition, process, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the sweep ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
