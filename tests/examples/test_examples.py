"""The pages in ``examples/`` run as they stand."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from murmur.privacy.ledger import Ledger

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """A page as a module, imported by its name as Python would start it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


def from_top_to_bottom(notebook):
    """What its cells have defined when all have run."""
    page = json.loads((EXAMPLES / notebook).read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in page["cells"] if cell["cell_type"] == "code"]
    names: dict = {}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"cell {number}", "exec"), names)
    return names


def test_the_notebook_of_a_mechanism_runs():
    names = from_top_to_bottom("ground_floor.ipynb")
    assert 0 < names["measured"] <= names["proven"]
    assert names["cost"](names["sigma"]) == pytest.approx(2.0, rel=1e-6)


def test_the_notebook_of_runs_runs():
    names = from_top_to_bottom("runs_and_frames.ipynb")
    assert names["frame"]["epsilon_proven"].tolist() == pytest.approx([2, 2, 8, 8], rel=0.01)
    assert names["means"].index.tolist() == [2, 8]


def test_an_algorithm_in_one_file_learns_and_is_accounted_for(tmp_path, example):
    page = example("one_file")
    run = page.main(tmp_path / "run", "federation.num_rounds=8", "federation.num_clients=20")
    rows = run.rows()
    assert rows[-1]["accuracy"] > rows[0]["accuracy"] + 0.2
    with Ledger(run.path / "ledger.sqlite", create=False) as ledger:
        assert ledger.releases() == 8 * 20


@pytest.mark.federation
def test_a_federation_of_separate_processes_finishes_and_charges_each_device(tmp_path):
    typed = [sys.executable, "-m", "examples.three_processes", str(tmp_path)]
    told = subprocess.run(typed, cwd=EXAMPLES.parent, check=True, capture_output=True, text=True)
    for client in range(3):
        assert f"device {client}: 2 releases charged, ledger verified" in told.stdout
    honest, _, false = told.stdout.partition("device 0, understated.json:")
    assert "questions: 2 asked: receipts of all 3 clients agree" in " ".join(honest.split())
    assert "CONTRADICTED" not in honest
    assert "was asked in round 2 (train), and the statement has no such round" in " ".join(
        false.split()
    )
    assert honest.count("this statement does not contradict what this device was asked") == 3
    assert false.count("was charged, and it has no question train in round 2") == 3
    assert false.count("the server asked, and its signature is in entry") == 3
