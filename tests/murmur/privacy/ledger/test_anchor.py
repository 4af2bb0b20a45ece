"""The anchor outside the database: what it notices, and what it survives."""

import shutil

import pytest

from murmur.privacy.ledger import Ledger
from tests.murmur.privacy.ledger.ledger_cases import assert_refused, beside, edit, fill

SLOT = 4096


@pytest.fixture
def path(tmp_path):
    """Four rounds of three clients: entries 1–3 charges, 4 an answer, and so on to 16."""
    fill(tmp_path / "ledger.sqlite")
    return tmp_path / "ledger.sqlite"


def positions(head):
    """How far each of the two anchors in the file reaches."""
    content = head.read_bytes()
    assert len(content) == 2 * SLOT
    return [int(content[start:].split()[0]) for start in (0, SLOT)]


def test_a_forged_or_foreign_anchor_is_noticed(path, tmp_path):
    head = beside(path, ".head")
    edit(path, "DELETE FROM entries WHERE position = 16")
    content = bytearray(head.read_bytes())
    start = SLOT * positions(head).index(16)
    content[start : start + 2] = b"15"
    head.write_bytes(content)
    assert 15 in positions(head)
    assert_refused(path, "the anchor .* is damaged")
    fill(tmp_path / "other" / "ledger.sqlite")
    shutil.copy(beside(tmp_path / "other" / "ledger.sqlite", ".head"), head)
    assert_refused(path, "the anchor .* is damaged, or belongs to another key")


def test_an_old_anchor_is_accepted_and_brought_up_to_date(path):
    """A process may be killed between its commit and its anchor; nothing is lost by that."""
    head = beside(path, ".head")
    old = head.read_bytes()
    fill(path, rounds=[4])
    head.write_bytes(old)
    with Ledger(path) as ledger:
        ledger.verify()
        assert len(ledger.events(1)) == 5
    assert 20 in positions(head)


@pytest.mark.parametrize("damage", [b"\0" * 4096, b"2" * 10])
def test_an_anchor_torn_by_a_power_cut_is_mended(path, damage):
    """The anchor is written after the commit: the database is ahead of the other anchor then."""
    head = beside(path, ".head")
    content = bytearray(head.read_bytes())
    fill(path, rounds=[4])
    torn = SLOT * (1 - positions(head).index(20))
    content[torn : torn + len(damage)] = damage
    head.write_bytes(content)
    with Ledger(path) as ledger:
        ledger.verify()
        assert len(ledger.events(1)) == 5
    assert 20 in positions(head)


def test_the_newest_anchor_cannot_be_destroyed_to_hide_what_came_last(path):
    head = beside(path, ".head")
    content = bytearray(head.read_bytes())
    newest = SLOT * positions(head).index(16)
    content[newest : newest + SLOT] = bytes(SLOT)
    head.write_bytes(content)
    edit(path, "DELETE FROM entries WHERE position = 16")
    assert_refused(path, "the anchor .* is damaged")


def test_a_copy_that_went_its_own_way_does_not_fit_the_anchor(path, tmp_path):
    """Validly signed entries, but not those that this device last vouched for."""
    copy = tmp_path / "copy.sqlite"
    for suffix in ("", ".key", ".head"):
        shutil.copy(beside(path, suffix), beside(copy, suffix))
    fill(path, rounds=[4])
    fill(copy, rounds=[5, 6])
    Ledger(copy).close()
    shutil.copy(copy, path)
    assert_refused(path, "entry 20 is not the one that was anchored")
