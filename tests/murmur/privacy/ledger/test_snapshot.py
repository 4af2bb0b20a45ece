"""A long ledger opens from a snapshot: old entries are read by ``verify`` only, and do no harm."""

import pytest

from murmur.privacy.ledger import Ledger, LedgerError, database
from tests.murmur.privacy.ledger.ledger_cases import EVENT, assert_refused, charges, edit, fill


@pytest.fixture
def path(tmp_path, monkeypatch):
    """39 rounds of three clients, in 156 entries; a snapshot about every 40."""
    monkeypatch.setattr(database, "SNAPSHOT_EVERY", 40)
    fill(tmp_path / "ledger.sqlite", rounds=range(39))
    return tmp_path / "ledger.sqlite"


def test_it_knows_what_it_would_know_from_reading_everything(path):
    with Ledger(path) as ledger:
        # The newest entries, at least as many as between two snapshots, are always read.
        assert 40 <= ledger._log.base <= 156 - 40
        known = {client: ledger.events(client) for client in ledger.clients()}
        assert len(list(ledger.entries())) == 156
        ledger.verify()
    assert known == {str(client): [EVENT] * 39 for client in (1, 2, 3)}
    edit(path, "DELETE FROM snapshots")
    with Ledger(path) as ledger:
        assert ledger._log.base == 0
        assert known == {client: ledger.events(client) for client in ledger.clients()}


def test_an_altered_entry_changes_nothing_that_is_believed_and_verify_finds_it(path):
    edit(path, "UPDATE entries SET client = '9' WHERE position = 6")
    with Ledger(path) as ledger:
        assert ledger.clients() == ["1", "2", "3"]
        assert ledger.events(2) == [EVENT] * 39
        with pytest.raises(LedgerError, match=r"entry 6 .*seal"):
            ledger.verify()


def test_an_answer_taken_back_does_not_open_its_question_again(path):
    """That nothing has left is believed only where every entry since was verified."""
    edit(path, "DELETE FROM entries WHERE position = 8")
    with Ledger(path) as ledger:
        outcomes = ledger.charge(charges(1))
        assert {(outcome.status, outcome.code) for outcome in outcomes} == {("refused", "too-old")}
        with pytest.raises(LedgerError, match="entry 8 is missing"):
            ledger.verify()


def test_a_recent_question_without_an_answer_may_still_be_answered(path):
    with Ledger(path) as ledger:
        ledger.charge(charges(40))
    with Ledger(path) as ledger:
        assert [outcome.status for outcome in ledger.charge(charges(40))] == ["repeated"] * 3


def test_an_altered_snapshot_is_noticed(path):
    edit(path, "UPDATE snapshots SET history = replace(history, '1-3', '2-3')")
    assert_refused(path, "snapshot was altered")


def test_a_snapshot_ahead_of_the_entries_is_noticed(path):
    edit(path, "DELETE FROM entries WHERE position > 40")
    assert_refused(path, "was there and is gone: the database was cut short")
