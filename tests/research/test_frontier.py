"""The frontier chooses settings and algorithms on validation data, never on the test set."""

import json

import pytest

from fl_app.config.compose import compose
from research.frontier import curves
from research.frontier.rows import METHODS, SETTINGS, Cell, cells

DIGITS = Cell("class statistics", "digits 60, iid", 8)


def row(name: str, accuracy: float) -> dict[str, object]:
    return {"name": name, "accuracy": accuracy, "seconds": 1.0, "bytes_up_per_client": 100}


def measured(cell: Cell, validation: list[float], test: float) -> dict[str, dict]:
    """Rows of ``cell`` with these accuracies; each candidate's on the test set is ``test``."""
    found = {}
    for one, accuracy in zip(cell.rows(), validation, strict=True):
        found[one.name] = row(one.name, accuracy)
        for each in cell.tests(one.candidate):
            found[each.name] = row(each.name, test)
    return found


def test_the_candidate_that_is_best_on_validation_data_is_chosen_whatever_the_test_set_says():
    rows = DIGITS.rows()
    done = measured(DIGITS, [0.5, 0.9, 0.7], 0.6)
    for each in DIGITS.tests(rows[0].candidate):
        done[each.name] = row(each.name, 0.99)
    assert curves.chosen(done, DIGITS) == rows[1].candidate
    assert curves.outcomes(done, DIGITS) == [0.6, 0.6, 0.6]


def test_nothing_is_chosen_before_all_candidates_are_compared():
    done = measured(DIGITS, [0.5, 0.9, 0.7], 0.6)
    del done[DIGITS.rows()[0].name]
    assert curves.chosen(done, DIGITS) is None
    assert curves.outcomes(done, DIGITS) == []


def test_the_algorithm_too_is_chosen_on_validation_data(capsys):
    done = {}
    for cell in cells():
        if (cell.setting, cell.epsilon) != (DIGITS.setting, DIGITS.epsilon):
            continue
        # votes are best on validation data, averaged updates on the test set
        validation = 0.8 if cell.method == "votes" else 0.6
        test = 0.95 if cell.method == "averaged updates" else 0.7
        done |= measured(cell, [validation] * len(cell.rows()), test)
    curves.show_frontier(done)
    line = next(s for s in capsys.readouterr().out.splitlines() if "| yes | digits 60, iid |" in s)
    assert "0.700 ± 0.000 (3), votes" in line
    assert "0.95" not in line


def test_a_figure_stands_beside_what_was_chosen_and_why(capsys):
    curves.show(measured(DIGITS, [0.5, 0.9, 0.7], 0.6))
    best = DIGITS.rows()[1].candidate
    assert f"0.600 ± 0.000 (3); 0.900; {best}" in capsys.readouterr().out


def test_rows_without_a_pool_use_none_of_its_images():
    found = [cell for cell in cells() if not METHODS[cell.method].pool]
    assert found
    for cell in found:
        for one in cell.rows():
            assert compose(one.overrides()).features.fitted_on is not None


def test_choices_are_made_on_images_that_nobody_has():
    for cell in (DIGITS, Cell("votes", "mnist 100, dirichlet 0.1", 8)):
        candidate, *_ = cell.rows()
        assert compose(candidate.overrides()).federation.score == "validation"
        for test in cell.tests(candidate.candidate):
            assert compose(test.overrides()).federation.score == "test"
            assert compose(test.overrides()).federation.validation > 0


@pytest.mark.parametrize("method", ["class statistics", "DP-FedAvg"])
def test_a_cell_is_measured_from_one_command(tmp_path, method, capsys):
    path = tmp_path / "rows.jsonl"
    only = rf"^{method} \| digits 60, iid \| 8$"
    curves.measure(path, only, minutes=10, processes=1)
    done = curves.load(path)
    cell = Cell(method, "digits 60, iid", 8)
    assert set(done) == {
        each.name for each in [*cell.rows(), *cell.tests(str(curves.chosen(done, cell)))]
    }
    before = path.read_text(encoding="utf-8")
    curves.measure(path, only, minutes=10, processes=1)
    assert path.read_text(encoding="utf-8") == before  # nothing is run again
    assert all(json.loads(line)["accuracy"] > 0.3 for line in before.splitlines()[-3:])


def test_every_setting_has_a_row():
    assert {cell.setting for cell in cells()} == set(SETTINGS)
