"""The benchmark's table: which targets count as met, and what is said where figures are missing."""

import pytest

from benchmarks.table import ROWS, detail_table, main_table

EAGER = next(row for row in ROWS if row.name == "cnn-eager")
INLINE = next(row for row in ROWS if row.name == "start-inline")
SUMS = next(row for row in ROWS if row.name == "real-sums")
WHOLE = next(row for row in ROWS if row.name == "privatekt-500")


@pytest.mark.parametrize(
    ("row", "value", "verdict"),
    [
        (EAGER, 8.0, "aim met"),
        (EAGER, 6.5, "met"),
        (EAGER, 3.25, "**missed by 100%**"),
        (INLINE, 3.0, "aim met"),
        (INLINE, 4.9, "met"),
        (INLINE, 7.5, "**missed by 50%**"),
        (SUMS, 15.0, "aim met"),
        (SUMS, 50.0, "**missed by 100%**"),
        (WHOLE, 11.0, ""),
    ],
)
def test_a_figure_is_judged_by_the_side_of_its_target_on_which_it_should_be(row, value, verdict):
    assert row.verdict(value) == verdict


def test_figures_are_ratios_of_medians_and_gaps_are_named():
    results = {
        "cnn murmur": [{"rounds": [2.0, 4.0]}, {"rounds": [1.0]}, {"rounds": [9.0]}],
        "cnn eager": [{"rounds": [30.0]}, {"rounds": [24.0]}, {"rounds": [27.0]}],
    }
    lines = main_table(results, {"cnn murmur bf16": "no bfloat16 here"})
    assert "**9.00×**" in next(line for line in lines if "eager" in line)
    missing = next(line for line in lines if "pfl" in line)
    assert "not measured (cnn pfl)" in missing
    assert sum("not measured (no bfloat16 here)" in line for line in lines) == 1
    assert len(lines) == len(ROWS) + 2


def test_a_round_of_kernels_names_the_share_of_the_peak_that_it_reaches():
    peak = {"fp32": 100.0, "bf16": 400.0, "cnn": 200.0}
    rounds = {"cnn murmur": [{"rounds": [4.0]}], "cnn murmur bf16": [{"rounds": [2.0]}]}
    results = {"peak": [peak], "cnn eager": [{"rounds": [24.0]}], **rounds}
    lines = [line for line in main_table(results, {}) if "eager" in line]
    assert [line.split("|")[-2].strip() for line in lines] == ["50% of fp32", "25% of bf16"]


def test_details_leave_out_what_no_repeat_has():
    lines = detail_table({"start": [{"first": 3.0, "rounds": [], "accuracy": None}]})
    assert [line.split("|")[2].strip() for line in lines[2:]] == [
        "command to the end of round 1, s"
    ]
