"""The table of audits: every setting composes, and each figure stands in its own column."""

import pytest

from fl_app.config.compose import compose
from research.attacks.audits import ALGORITHMS, COMMON, lines, table


def found(measured, **more):
    return {"proven": 8.0, "measured": measured, "assumed": False, "auc": 0.9, "hits": 0.1} | more


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_spends_its_budget_over_the_run_against_whom_it_is_attacked(name):
    privacy = compose([*COMMON, *ALGORITHMS[name][0]]).privacy
    assert privacy.threat == ("central" if name in ("DP-FedAvg", "DP-FTRL") else "local")


def test_a_row_says_measured_of_proven_and_marks_what_rests_on_an_assumption():
    row = {"algorithm": "A", "epsilon": 8.0, "accuracy": 0.5, "bytes": 1000, "seconds": 2.4}
    attacks = {"release": found(6.0), "model": found(4.0, assumed=True, auc=0.95)}
    assert table([{**row, "found": attacks}]) == [
        ["A", "8", "0.500", "6 of 8: 0.75", "–", "4 of 8: 0.50*", "0.950", "0.100", "1,000", "2"]
    ]
    assert table([{**row, "found": {}}])[0][3:8] == ["–"] * 5


def test_what_is_asked_before_the_rounds_has_a_line_of_its_own():
    row = {"algorithm": "A", "found": {"release": found(6.0), "labels": found(3.0)}}
    own = lines([row])[1]
    assert own == {"algorithm": "A's labels", "found": {"release": found(3.0)}}
