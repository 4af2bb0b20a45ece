"""A ledger that was altered, cut short or replaced is noticed, and everything is refused."""

import json
import shutil
import sqlite3
from dataclasses import replace

import pytest

from murmur.privacy.ledger import Ledger, LedgerError
from murmur.privacy.ledger.chain import LedgerSigner
from tests.murmur.privacy.ledger.ledger_cases import (
    assert_refused,
    beside,
    charges,
    digest,
    edit,
    fill,
    reseal,
)


@pytest.fixture
def path(tmp_path):
    """Four rounds of three clients: entries 1–3 charges, 4 an answer, and so on to 16."""
    fill(tmp_path / "ledger.sqlite")
    return tmp_path / "ledger.sqlite"


CHEAPER = json.dumps({"categories": 10, "epsilon": 0.1, "kind": "RandomizedResponseEvent"})

EDITS = {
    "a release made cheaper": (
        f"UPDATE entries SET body = '{CHEAPER}' WHERE position = 6",
        r"entry 6 \(charge, client 2, run run, round 1\): its contents do not match its seal",
    ),
    "a charge moved to somebody else": (
        "UPDATE entries SET client = '9' WHERE position = 6",
        "entry 6 .*do not match its seal",
    ),
    "another time": ("UPDATE entries SET time = '2020' WHERE position = 1", "entry 1 .*seal"),
    "another round": ("UPDATE entries SET round = 77 WHERE position = 16", "entry 16 .*seal"),
    "a forged seal": ("UPDATE entries SET seal = zeroblob(32) WHERE position = 9", "entry 9 "),
    "an answer taken back": ("DELETE FROM entries WHERE position = 8", "entry 8 is missing"),
    "the first entry removed": ("DELETE FROM entries WHERE position = 1", "entry 1 is missing"),
    "the last entry removed": (
        "DELETE FROM entries WHERE position = 16",
        "ends at entry 15, but had 16: the database was cut short",
    ),
    "everything removed": ("DELETE FROM entries", "ends at entry 0, but had 16"),
    "a client's whole life removed": (
        "DELETE FROM entries WHERE client = '2'",
        "entry 2 is missing",
    ),
    "a gap closed by renumbering": (
        "DELETE FROM entries WHERE position = 2; "
        "UPDATE entries SET position = position - 1 WHERE position > 2",
        "entry 2 .*does not follow entry 1",
    ),
    "two entries exchanged": (
        "UPDATE entries SET position = 99 WHERE position = 2; "
        "UPDATE entries SET position = 2 WHERE position = 3; "
        "UPDATE entries SET position = 3 WHERE position = 99",
        "entry 2 .*does not follow entry 1",
    ),
    "an entry added": (
        "INSERT INTO entries SELECT 17, time, kind, client, run, 99, purpose, request, body, "
        "(SELECT seal FROM entries WHERE position = 16), seal, signature FROM entries "
        "WHERE position = 1",
        "entry 17 .*seal",
    ),
    "a trigger removed": (
        "DROP TRIGGER IF EXISTS entries_never_change",
        "never_change' is missing",
    ),
    "a trigger added": (
        "CREATE TRIGGER forget AFTER INSERT ON entries BEGIN DELETE FROM replies;END",
        "'forget' is altered",
    ),
    "an index removed": ("DROP INDEX one_charge", "'one_charge' is missing"),
    "a table replaced": ("DROP TABLE replies; CREATE TABLE replies (x)", "'replies' is altered"),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_of_the_database_is_noticed_and_named(path, what):
    statements, reason = EDITS[what]
    if what == "a trigger removed":
        sqlite3.connect(path, isolation_level=None).execute(statements)
    else:
        edit(path, *statements.split("; "))
    assert_refused(path, reason)


@pytest.mark.parametrize("what", ["a release made cheaper", "another time", "an entry added"])
def test_who_makes_the_chain_fit_again_still_lacks_the_signature(path, what):
    """SHA-256 needs no key, so anybody can reseal what he has altered."""
    edit(path, *EDITS[what][0].split("; "))
    reseal(path, 2)
    assert_refused(path, "(signature|anchored|entry 1 .*seal)")


def test_the_signature_of_one_entry_does_not_serve_another(path):
    edit(path, EDITS["an entry added"][0])
    reseal(path, 17)
    stolen = "(SELECT signature FROM entries WHERE position = 16)"
    edit(path, f"UPDATE entries SET signature = {stolen} WHERE position = 17")
    assert_refused(path, "entry 17 .*signature is missing or does not match")


def test_a_header_of_somebody_else_is_noticed(path):
    edit(path, 'UPDATE header SET text = replace(text, \'"key":"\', \'"key":"0\')')
    assert_refused(path, "belongs to another ledger")


def test_a_header_that_says_another_beginning_is_noticed(path):
    edit(path, 'UPDATE header SET text = replace(text, \'"created":"2\', \'"created":"1\')')
    assert_refused(path, "entry 1 .*does not follow entry 0")


def test_a_process_at_work_notices_an_old_entry_that_was_altered_and_resealed(path):
    """A charge given another request would be computed again, with fresh noise."""
    with Ledger(path) as ledger:
        ledger.charge(charges(4))
        known = ledger._log.history.seal.hex()
        edit(path, f"UPDATE entries SET request = '{digest('new')}' WHERE position = 17")
        reseal(path, 17)
        asked = [replace(charge, request=digest("new")) for charge in charges(4, clients=[1])]
        with pytest.raises(LedgerError, match=r"entry 19 was there and is gone"):
            ledger.charge(asked)
        edit(
            path,
            f"UPDATE entries SET seal = x'{known}' WHERE position = 19",
        )
        with pytest.raises(LedgerError, match=r"entry 19 .*seal"):
            ledger.charge(asked)


def test_an_untouched_ledger_passes_the_same_handling(path):
    edit(path, "SELECT 1")
    with Ledger(path, create=False) as ledger:
        ledger.verify()
        assert len(list(ledger.entries())) == 16


@pytest.mark.parametrize(
    ("suffix", "content", "reason"),
    [
        (".head", None, "the anchor .* is missing"),
        (".head", b"", "the anchor .* is damaged"),
        (".head", b"3 ab cd\n", "the anchor .* is damaged"),
        (".head", b"\xff\x00", "the anchor .* is damaged"),
        (".key", None, "the key file .* is missing"),
        (".key", b"", "does not hold a key"),
        (".key", b"ab" * 31, "does not hold a key"),
        (".key", b"ab" * 32, "does not hold a key"),
        (".key", LedgerSigner.generate().to_pem(), "belongs to another ledger"),
        ("", None, "the database is missing|there is no such ledger"),
        ("", b"", "is altered|is missing"),
        ("", b"not a database" * 1000, "not a database|is no ledger"),
    ],
)
def test_a_missing_or_damaged_file_is_noticed(path, suffix, content, reason):
    file = beside(path, suffix)
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert_refused(path, reason)


def test_a_lost_key_is_not_replaced_by_a_new_one(path):
    beside(path, ".key").unlink()
    path.unlink()
    assert_refused(path, "key file .* is missing|no such ledger")


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_a_database_cut_off_in_the_middle_is_noticed(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert_refused(path, "damaged|malformed|cut short")


def test_an_index_that_no_longer_leads_to_its_entries_is_noticed(path):
    """Looking an answer up in it would find none, and the question would be open again."""
    database = sqlite3.connect(path)
    query = "SELECT rootpage FROM sqlite_master WHERE name = 'one_answer'"
    page, size = database.execute(query).fetchone()[0], 4096
    assert database.execute("PRAGMA page_size").fetchone()[0] == size
    database.close()
    content = bytearray(path.read_bytes())
    content[page * size - 200 : page * size] = b"0" * 200
    path.write_bytes(content)
    assert_refused(path, "damaged|malformed")


def test_an_old_copy_of_database_and_anchor_is_not_noticed_by_the_device_even_if_it_is_named(
    path, tmp_path
):
    # docs/ledger.md and docs/threat-model.md say so: nothing outside these files remembers.
    copies = {suffix: tmp_path / f"old{suffix}" for suffix in ("", ".head")}
    for suffix, copy in copies.items():
        shutil.copy(beside(path, suffix), copy)
    fill(path, range(4, 6))
    with Ledger(path) as ledger:
        name, later = ledger.id, len(list(ledger.entries()))
    for suffix, copy in copies.items():
        shutil.copy(copy, beside(path, suffix))
    with Ledger(path, expected=name) as ledger:
        assert len(list(ledger.entries())) == 16 < later
    shutil.copy(copies[""], path)
    fill(path, range(4, 6))
    shutil.copy(copies[""], path)  # one of the two is not enough
    assert_refused(path, "ends at entry 16")


def test_an_old_copy_of_the_database_is_noticed(path, tmp_path):
    shutil.copy(path, tmp_path / "old")
    fill(path, rounds=range(4, 6))
    shutil.copy(tmp_path / "old", path)
    assert_refused(path, "ends at entry 16, but had 24: the database was cut short")


def test_a_lost_write_ahead_log_is_noticed(path):
    ledger = Ledger(path)
    ledger.charge(charges(10))
    content = path.read_bytes(), beside(path, ".head").read_bytes()
    ledger.close()
    path.write_bytes(content[0])
    beside(path, ".head").write_bytes(content[1])
    assert_refused(path, "cut short")


def test_a_stored_reply_that_was_altered_is_not_sent(path):
    edit(path, "UPDATE replies SET reply = x'00'")
    with Ledger(path) as ledger:
        for use in (lambda: ledger.reply(digest(3)), ledger.verify):
            with pytest.raises(LedgerError, match=r"stored reply .* is not the one"):
                use()


def test_a_process_at_work_notices_that_entries_go_away_or_change(path):
    for statement, reason in (
        ("DELETE FROM entries WHERE position = 16", "entry 16 was there and is gone"),
        ("UPDATE entries SET seal = zeroblob(32) WHERE position = 16", "entry 16 was there"),
    ):
        copy = path.with_name("copy.sqlite")
        for suffix in ("", ".key", ".head"):
            shutil.copy(beside(path, suffix), beside(copy, suffix))
        with Ledger(copy) as ledger:
            edit(copy, statement)
            for _ in range(2):
                with pytest.raises(LedgerError, match=reason):
                    ledger.charge(charges(20))
                with pytest.raises(LedgerError, match=reason):
                    ledger.spent(1)


def test_a_process_at_work_does_not_believe_entries_that_it_cannot_verify(path):
    with Ledger(path) as ledger:
        edit(path, EDITS["an entry added"][0])
        for _ in range(2):
            with pytest.raises(LedgerError, match=r"entry 17 .*seal"):
                ledger.charge(charges(20))


def test_verify_notices_what_happens_to_old_entries_while_it_is_open(path):
    with Ledger(path) as ledger:
        edit(path, EDITS["a release made cheaper"][0])
        with pytest.raises(LedgerError, match=r"entry 6 .*seal"):
            ledger.verify()
        with pytest.raises(LedgerError, match=r"entry 6 .*seal"):
            list(ledger.entries())
