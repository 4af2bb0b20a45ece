"""A run's folder holds everything, survives a kill, and fails early when unwritable."""

import json

import numpy as np
import pytest
from omegaconf import OmegaConf

from fl_app.config.errors import ConfigError
from fl_app.run.results import Checkpoint, RowLines, RunFolder, config_text, row_line, text_digest
from murmur.privacy.ledger import Ledger
from murmur.privacy.ledger.key_and_anchor import KeyAndAnchor
from murmur.privacy.statement import Statement
from murmur.round.run_state import RunState
from tests.fl_app.running import run_inline
from tests.murmur.privacy.ledger.ledger_cases import fill


def test_finished_run_leaves_every_file(tmp_path):
    run = run_inline(tmp_path / "run")
    names = {path.name for path in run.path.iterdir()}
    assert {
        "config.yaml",
        "rounds.jsonl",
        "metrics.json",
        "privacy.json",
        "privacy.txt",
        "model",
        "checkpoint.safetensors",
        "partition.json",
        "ledger.sqlite",
    } <= names
    assert [row["round"] for row in run.rows()] == [0, 1, 2]
    held = json.loads((run.path / "partition.json").read_text())
    counts = np.array(held["counts"])
    assert counts.shape == (6, 10) and counts.sum() == held["examples"] > 0
    assert held["shown"] == list(range(6)) and held["clients"] == 6


def test_statement_reads_back_and_names_claimed_and_proven(tmp_path):
    run = run_inline(tmp_path / "run", "privacy=paper", "privacy.epsilon=4")
    statement = Statement.from_dict(json.loads((run.path / "privacy.json").read_text()))
    guarantee = statement.guarantees[0]
    assert guarantee.claimed_per_round == 4
    assert 3.9 < guarantee.proven_per_round <= 4  # δ > 0 buys a little
    assert 4 < guarantee.proven_total <= 8.0001
    assert statement.void, "seeded noise must void the statement"


def test_half_written_row_is_ignored(tmp_path):
    run = RunFolder(tmp_path)
    run.append_row({"round": 1})
    with open(run.rows_path, "a") as file:
        file.write('{"round": 2, "acc')
    assert run.rows() == [{"round": 1}]
    run.keep_rows(['{"round": 1}\n'])
    run.append_row({"round": 2})
    assert [row["round"] for row in run.rows()] == [1, 2]


def test_checkpoint_reads_back(tmp_path):
    run = RunFolder(tmp_path)
    config, rows = OmegaConf.create({"seed": 1}), RowLines([row_line({"round": 0})])
    run.save_config(config)
    run.keep_rows(rows)
    configs = [text_digest(config_text(config))]
    state, counts = {"x": np.arange(2)}, {3: 2, 1: 5}
    state = RunState(7, np.ones(3), participations=counts, algorithm=state)
    run.save_checkpoint(Checkpoint(state, "run", {"seed": 1}, configs, rows))
    found = run.load_checkpoint()
    assert (found.run.round, found.run.participations, found.rows) == (7, counts, rows)
    assert found.run.algorithm["x"].tolist() == [0, 1]


def test_ledger_that_was_killed_while_it_was_begun_is_begun_again(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(KeyAndAnchor, "keep_key", killed)
        with pytest.raises(KeyboardInterrupt):
            Ledger(tmp_path / "ledger.sqlite")
    assert (tmp_path / "ledger.sqlite").exists()
    folder.require_ledger()
    (tmp_path / "ledger.sqlite.key").unlink()  # one that is whole, and empty
    folder.require_ledger()
    fill(tmp_path / "ledger.sqlite")
    (tmp_path / "ledger.sqlite.key").unlink()
    with pytest.raises(ConfigError, match=r"key file .* is missing; start the run anew"):
        folder.require_ledger()


def test_unwritable_folder_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"run_dir=.*file/run: cannot be written"):
        RunFolder(tmp_path / "file" / "run")


def test_further_scores_are_in_every_row_and_at_the_end(tmp_path):
    run = run_inline(tmp_path / "run", "evaluation.metrics=[f1_score,{fbeta_score:{beta:2}}]")
    assert all({"f1_score", "fbeta_score"} <= set(row) for row in run.rows())
    assert run.metrics()["f1_score"] == run.rows()[-1]["f1_score"]
    with pytest.raises(ConfigError, match=r"^evaluation\.metrics=f7: "):
        run_inline(tmp_path / "other", "evaluation.metrics=[f7]")
    with pytest.raises(ConfigError, match="scores of its own"):
        run_inline(tmp_path / "other", "strategy=local_only", "evaluation.metrics=[f1_score]")
