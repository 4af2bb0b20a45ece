"""What comes from outside moves no cursor and computes nothing."""

import pytest

from murmur.format import csv_cell, printable


def test_no_code_reaches_a_terminal():
    sent = "a\x1b[2Jb\x1b]0;title\x07c\r\nd\u202ee\x9bf\ud800g\x7f"
    assert printable(sent).isprintable()
    assert printable(sent) == "a?[2Jb?]0;title?c??d?e?f?g?"
    assert printable(sent, keep="\n") == "a?[2Jb?]0;title?c?\nd?e?f?g?"
    assert printable("ε = 1, «señor» 日本") == "ε = 1, «señor» 日本"


@pytest.mark.parametrize("begins", "=+-@\t\r")
def test_no_text_is_a_formula(begins):
    assert csv_cell(f"{begins}1+1") == f"'{begins}1+1"


def test_what_stands_behind_the_apostrophe_is_the_text():
    for text in ("=1", "'=1", "''", "plain", "", "1-1", "a=b"):
        cell = csv_cell(text)
        assert (cell[1:] if cell.startswith("'") else cell) == text


def test_numbers_stay_numbers():
    assert [csv_cell(value) for value in (-1, -0.5, None, True)] == [-1, -0.5, None, True]
