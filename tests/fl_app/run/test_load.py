"""Whatever a run has left so far is read; what is damaged is said; what is no run is refused."""

import json
import math
import shutil

import pytest

from fl_app.config.errors import ConfigError
from fl_app.run.load import load_run, load_runs
from tests.run_folders import write_run, write_sweep


@pytest.fixture(scope="module")
def sweep_folder(tmp_path_factory):
    """A sweep's folder; not to be changed."""
    return write_sweep(tmp_path_factory.mktemp("sweep"))


def test_a_finished_run_is_read_whole(tmp_path):
    write_run(tmp_path / "run", "strategy=privatekt", "seed=3")
    source = load_runs(tmp_path / "run")
    (run,) = source.runs
    assert not source.is_sweep
    assert (run.state, run.seed, run.last_round, run.planned_rounds) == ("finished", 3, 6, 6)
    assert run.statement is not None and run.statement.algorithm == "PrivateKT"
    assert "claimed ε" in run.statement_text
    assert run.problems == ()


def test_a_sweep_knows_finished_unfinished_failed_and_missing_jobs(sweep_folder):
    source = load_runs(sweep_folder)
    assert [run.state for run in source.runs] == [
        *["finished"] * 9,
        "unfinished",
        "failed",
        "not started",
    ]
    assert source.runs[-2].error == "ValueError: client 7: the update is not finite"


def test_a_folder_of_runs_is_a_sweep(tmp_path):
    for seed in (1, 2):
        write_run(tmp_path / f"run-{seed}", f"seed={seed}")
    (tmp_path / "notes").mkdir()
    source = load_runs(tmp_path)
    assert source.is_sweep
    assert [run.name for run in source.runs] == ["run-1", "run-2"]
    assert source.title == f"All of {tmp_path.name}: 2 runs"


def test_a_folder_has_the_jobs_of_its_sweeps_beside_its_runs(tmp_path, sweep_folder):
    write_run(tmp_path / "all" / "single", "seed=1")
    shutil.copytree(sweep_folder, tmp_path / "all" / "sweep-mine")
    source = load_runs(tmp_path / "all")
    assert source.title == "All of all: 13 runs, those of 1 sweep among them"
    assert source.runs[0].name == "single"
    assert all(run.name.startswith("sweep-mine/") for run in source.runs[1:])


def test_a_half_written_row_is_left_out(tmp_path):
    folder = write_run(tmp_path / "run", done=3)
    with open(folder.rows_path, "a", encoding="utf-8") as file:
        file.write('{"round": 4, "accu')
    run = load_run(folder.path)
    assert (run.last_round, run.state, run.problems) == (3, "unfinished", ())


@pytest.mark.parametrize(
    "name", ["config.yaml", "rounds.jsonl", "metrics.json", "privacy.json", "overrides.json"]
)
def test_a_damaged_file_is_named_and_the_rest_is_read(tmp_path, name):
    folder = write_run(tmp_path / "run")
    (folder.path / name).write_bytes(b"\xff{]\n")
    run = load_run(folder.path)
    assert [problem.split(":")[0] for problem in run.problems] == [name]
    assert run.statement_text


def test_reading_writes_nothing(tmp_path):
    folder = write_run(tmp_path / "run")
    before = sorted((p.name, p.stat().st_mtime_ns) for p in [folder.path, *folder.path.iterdir()])
    load_runs(folder.path)
    after = sorted((p.name, p.stat().st_mtime_ns) for p in [folder.path, *folder.path.iterdir()])
    assert after == before


@pytest.mark.parametrize("content", [None, "{}", '{"jobs": [3]}', "["])
def test_no_run_and_no_sweep_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(ConfigError, match=r"sweep\.json"):
        load_runs(tmp_path)


def test_infinite_epsilon_is_a_number(tmp_path):
    write_run(tmp_path / "run", "privacy.epsilon=inf")
    (run,) = load_runs(tmp_path / "run").runs
    assert run.statement is not None
    assert math.isinf(run.statement.guarantees[0].proven_total)
    assert json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[1])
