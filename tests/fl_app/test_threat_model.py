"""The threat model names every algorithm, every field that leaves, and files that exist."""

import re
from pathlib import Path

import pytest

from docs.threat_table import page, rows_of
from fl_app.config.groups import CONF, groups
from tests.fl_app.device.test_hostile_server import CASES, EVALUATE, honest
from tests.fl_app.device_under_test import OPEN, Device

PROJECT = Path(__file__).resolve().parents[2]
TEXT = (PROJECT / "docs" / "threat-model.md").read_text(encoding="utf-8")


def first_cells(header):
    """The names in backquotes of the first column of the table whose header starts so."""
    table = TEXT.partition(f"| {header}")[2].partition("\n\n")[0]
    rows = table.splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`([\w.*]+)`", row.split("|")[1])}


@pytest.mark.parametrize("name", groups()["strategy"])
def test_every_algorithms_own_file_says_what_it_sends(name):
    rows = rows_of(CONF / "strategy" / f"{name}.yaml")
    assert rows
    assert all(row.startswith(f"| `{name}` (") and row.count(" | ") == 2 for row in rows)


def test_the_page_has_the_rows_of_all_algorithms_and_evaluations():
    assert page() == TEXT, "run python -m docs.threat_table"
    assert first_cells("`evaluation=`") == set(groups()["evaluation"])


@pytest.mark.parametrize("name", CASES)
def test_what_leaves_a_device_is_listed_field_by_field(tmp_path, name):
    fields = first_cells("field |")
    case, device = CASES[name], Device(tmp_path, CASES[name].policy)
    words = device.words(*case.words)
    kind = EVALUATE if case.purpose == EVALUATE else "train"
    content = device.ask(words, honest(case, words), kind).content
    sent = {f"{record}.{key}" for record in content for key in content[record]}
    assert "report.clients" in sent
    assert sent <= fields, sent - fields
    assert case.policy == OPEN or name.partition(",")[0] in groups()["strategy"]


def test_all_files_and_settings_that_it_names_exist():
    for path in re.findall(r"`((?:tests|docs|deploy|learning|fl_app)/[\w./]+)`", TEXT):
        assert (PROJECT / path).exists(), path
    for path in re.findall(r"\]\(([\w.-]+\.md)\)", TEXT):
        assert (PROJECT / "docs" / path).exists(), path
