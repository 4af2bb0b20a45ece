"""The anchor outside the database: what it notices, and what it survives."""

import shutil

import pytest

from privacy.ledger import Ledger
from tests.privacy.ledger_cases import assert_refused, edit, fill, sidecar


@pytest.fixture
def path(tmp_path):
    """Four rounds of three clients: entries 1–3 charges, 4 an answer, and so on to 16."""
    fill(tmp_path / "ledger.sqlite")
    return tmp_path / "ledger.sqlite"


def test_a_forged_or_foreign_anchor_is_noticed(path, tmp_path):
    head = sidecar(path, ".head")
    edit(path, "DELETE FROM entries WHERE position = 16")
    head.write_bytes(head.read_bytes().replace(b"16 ", b"15 "))
    assert_refused(path, "the anchor .* is damaged|but had|not the one")
    fill(tmp_path / "other" / "ledger.sqlite")
    shutil.copy(sidecar(tmp_path / "other" / "ledger.sqlite", ".head"), head)
    assert_refused(path, "the anchor .* is damaged, or belongs to another key")


def test_an_old_anchor_is_accepted_and_brought_up_to_date(path):
    """A process may be killed between its commit and its anchor; nothing is lost by that."""
    head = sidecar(path, ".head")
    old = head.read_bytes()
    fill(path, rounds=[4])
    head.write_bytes(old)
    with Ledger(path) as ledger:
        ledger.verify()
        assert len(ledger.events(1)) == 5
    assert head.read_bytes().count(b"20 ") == 1


@pytest.mark.parametrize("damage", [b"\0" * 4096, b"2" * 10])
def test_an_anchor_torn_by_a_power_cut_is_mended(path, damage):
    """The anchor is written after the commit: the database is ahead of the other anchor then."""
    head = sidecar(path, ".head")
    anchors = head.read_bytes()
    fill(path, rounds=[4])
    newest = max((anchors[:4096], 0), (anchors[4096:], 4096), key=lambda a: int(a[0].split()[0]))
    torn = bytearray(anchors)
    older = 4096 - newest[1]
    torn[older : older + len(damage)] = damage
    head.write_bytes(torn)
    with Ledger(path) as ledger:
        ledger.verify()
        assert len(ledger.events(1)) == 5
    content = head.read_bytes()
    assert content.count(b"20 ") == 1 and len(content) == len(anchors)


def test_the_newest_anchor_cannot_be_destroyed_to_hide_what_came_last(path):
    head = sidecar(path, ".head")
    anchors = head.read_bytes()
    newest = 0 if anchors.startswith(b"16 ") else 4096
    head.write_bytes(anchors[:newest] + bytes(4096) + anchors[newest + 4096 :])
    edit(path, "DELETE FROM entries WHERE position = 16")
    assert_refused(path, "the anchor .* is damaged")
