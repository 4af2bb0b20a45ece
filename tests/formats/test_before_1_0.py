"""Files that commit 50019689 wrote are read: ledger, checkpoint, statement, rows, policy.

Each folder is a run of it (`murmur ... run_dir=FOLDER`, 3 rounds), and the same run interrupted in
round 2, when clients had answered (`sums`: between rounds; `open-sum`: in a secure sum). They are
copied, never written.
"""

import json
import shutil
from pathlib import Path

import pytest

from fl_app.cli import main as murmur
from fl_app.run.results import RunFolder
from murmur.privacy.ledger import Ledger
from murmur.privacy.statement import Statement

FILES = Path(__file__).parent / "before_1_0"
RUNS = ("sums", "records", "canaries", "labels")


@pytest.fixture(params=RUNS)
def whole(request, tmp_path):
    return shutil.copytree(FILES / request.param, tmp_path / request.param)


def test_a_ledger_verifies_and_has_what_was_charged(whole):
    with Ledger(whole / "ledger.sqlite", create=False) as ledger:
        ledger.verify()
        assert ledger.clients()
        for client in ledger.clients():
            assert ledger.events(client)


def test_a_statement_says_what_it_said(whole, capsys):
    written = json.loads((whole / "privacy.json").read_text())
    read = Statement.from_dict(written)
    for old, new in zip(written["guarantees"], read.to_dict()["guarantees"], strict=True):
        assert {name: new[name] for name in old} == old
    assert murmur(["statement", str(whole)]) == 0
    assert capsys.readouterr().out


def test_rows_and_metrics_are_read(whole):
    run = RunFolder(whole)
    assert [row["round"] for row in run.rows()] == [0, 1, 2, 3]
    assert run.metrics()["accuracy"] == run.rows()[-1]["accuracy"]


@pytest.mark.parametrize("name", RUNS)
def test_an_interrupted_run_resumes_and_pays_as_the_whole_one(name, tmp_path):
    cut = shutil.copytree(FILES / f"{name}-interrupted", tmp_path / name)
    assert murmur(["resume", str(cut)]) == 0
    assert [row["round"] for row in RunFolder(cut).rows()] == [0, 1, 2, 3]
    with Ledger(cut / "ledger.sqlite", create=False) as ledger:
        ledger.verify()
        resumed = {client: len(ledger.events(client)) for client in ledger.clients()}
    with Ledger(FILES / name / "ledger.sqlite", create=False) as ledger:
        assert resumed == {client: len(ledger.events(client)) for client in ledger.clients()}


def test_a_sum_that_another_version_began_is_left_to_it(tmp_path, capsys):
    cut = shutil.copytree(FILES / "open-sum", tmp_path / "cut")
    before = (cut / "secure-sum.safetensors").read_bytes()
    assert murmur(["resume", str(cut)]) == 1
    assert "another version of Murmur began this sum" in capsys.readouterr().err
    assert (cut / "secure-sum.safetensors").read_bytes() == before
