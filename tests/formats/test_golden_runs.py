"""Every algorithm charges and states what it did when ``golden_runs.json`` was written.

Another machine may compute the last digit of an exponential otherwise, so floats are compared to
nine digits; models and scores, which differ by more, are not compared here.
"""

import json
from pathlib import Path

import pytest

from benchmarks.golden_runs import RUNS, differences, record

GOLDEN = json.loads((Path(__file__).parent / "golden_runs.json").read_text())
TOLERANCE = 1e-9


def test_every_setting_has_a_golden_run():
    assert list(GOLDEN) == list(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_charges_and_statement_are_as_before(name):
    run = record(RUNS[name])
    assert "error" not in run
    for part in ("charges", "statement"):
        assert differences(GOLDEN[name][part], run[part], TOLERANCE) == []


def test_a_difference_is_named_with_its_place():
    before = {"a": [{"b": 1.0}, 2]}
    assert differences(before, {"a": [{"b": 1.0 + 1e-12}, 2]}, 1e-9) == []
    assert differences(before, {"a": [{"b": 1.1}, 2]}, 1e-9) == ["a.0.b: was 1.0, is 1.1"]
    assert differences(before, {"a": [{"b": 1}, 2]}, 1e-9) == ["a.0.b: was 1.0, is 1"]
    assert differences(before, {}) == [f"a: was {before['a']}, is nothing"]
