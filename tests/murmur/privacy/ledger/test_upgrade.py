"""A ledger of format 1 (sealed with a secret) becomes a signed one, if all of it verifies."""

import hashlib
import hmac
import os
import sqlite3
from datetime import UTC, datetime

import pytest

from murmur.privacy.ledger import Ledger, LedgerError
from murmur.privacy.ledger.entry import Entry, event_text
from murmur.privacy.ledger.upgrade import upgrade
from tests.murmur.privacy.ledger.ledger_cases import EVENT, beside, charges, digest

KEY = bytes(range(32))
NOW = datetime(2026, 11, 1, tzinfo=UTC)
COLUMNS = "position, time, kind, client, run, round, purpose, request, body, previous, seal"
TIME = "2026-10-01T12:00:00.000+00:00"


def seal(purpose, text):
    return hmac.digest(KEY, f"{purpose}\0{text}".encode(), "sha256")


def slot(position, last):
    text = f"{position} {last.hex()}"
    return f"{text} {seal('anchor', text).hex()}".encode().ljust(4095) + b"\n"


@pytest.fixture
def path(tmp_path):
    """What the earlier version left: two rounds of clients 1 and 2, the second unanswered."""
    path = tmp_path / "ledger.sqlite"
    database = sqlite3.connect(path)
    database.execute(f"CREATE TABLE entries ({COLUMNS})")
    database.execute("CREATE TABLE replies (request, run, round, reply)")
    question = ("run", 0, "train", digest(0))
    bodies = [("charge", "1", *question, event_text(EVENT))]
    bodies += [("charge", "2", *question, event_text(EVENT))]
    reply = hashlib.sha256(b"reply 0").hexdigest()
    bodies += [("answer", None, "run", 0, None, digest(0), reply)]
    bodies += [("charge", "1", "run", 1, "train", digest(1), event_text(EVENT))]
    previous, seals = hashlib.sha256(b"murmur ledger, format 1").digest(), []
    for position, body in enumerate(bodies, 1):
        entry = Entry(position, TIME, *body, previous, b"", None)
        previous = seal("entry", entry.encoding())
        seals.append(previous)
        marks = ", ".join("?" * 11)
        database.execute(f"INSERT INTO entries VALUES ({marks})", [*entry[:-2], previous])
    database.execute("INSERT INTO replies VALUES (?, 'run', 0, ?)", [digest(0), b"reply 0"])
    database.commit()
    database.close()
    beside(path, ".key").write_text(KEY.hex() + "\n")
    beside(path, ".head").write_bytes(slot(3, seals[2]) + slot(4, seals[3]))
    return path


def test_it_is_refused_until_its_owner_upgrades_it(path):
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"earlier version.*`murmur ledger upgrade`"):
        Ledger(path)
    assert path.read_bytes() == before


def test_everything_is_taken_over_and_signed(path):
    assert upgrade(path, lambda: NOW) == 4
    with Ledger(path) as ledger:
        ledger.verify()
        assert [entry.time for entry in ledger.entries()] == [TIME] * 4
        assert ledger.events(1) == [EVENT] * 2 and ledger.events(2) == [EVENT]
        assert ledger.reply(digest(0)) == b"reply 0"
        assert {outcome.status for outcome in ledger.charge(charges(0))} == {"answered"}
        assert ledger.charge(charges(1, clients=[1]))[0].status == "repeated"
        ledger.store_reply(digest(1), b"reply 1")
    with pytest.raises(LedgerError, match="not of format 1; nothing was changed"):
        upgrade(path, lambda: NOW)
    assert beside(path, ".format1").exists() and beside(path, ".format1.key").exists()


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE entries SET client = '9' WHERE position = 2", "entry 2 .*match its seal"),
        ("DELETE FROM entries WHERE position = 2", "entry 3 .*does not follow"),
        ("DELETE FROM entries WHERE position = 4", "cut short"),
        ("UPDATE replies SET reply = x'00'", "reply .* is not the one given"),
    ],
)
def test_what_was_altered_is_not_signed(path, statement, reason):
    with sqlite3.connect(path) as database:
        database.execute(statement)
    for _ in range(2):
        with pytest.raises(LedgerError, match=reason):
            upgrade(path, lambda: NOW)
        with pytest.raises(LedgerError, match="earlier version"):
            Ledger(path)


@pytest.mark.parametrize("suffix", ["", ".key", ".head"])
def test_what_is_missing_or_damaged_is_not_signed(path, suffix):
    content = beside(path, suffix).read_bytes()
    beside(path, suffix).write_bytes(b"ab" + content[2:])
    with pytest.raises(LedgerError):
        upgrade(path, lambda: NOW)
    beside(path, suffix).unlink()
    with pytest.raises(LedgerError, match="is missing"):
        upgrade(path, lambda: NOW)


@pytest.mark.parametrize("step", range(3))
def test_cut_short_between_its_files_it_is_refused_and_can_be_done_again(path, monkeypatch, step):
    original, calls = os.replace, []

    def replace(source, target):
        if str(source).endswith((".new", ".new.key", ".new.head")) and ".tmp" not in str(source):
            calls.append(source)
            if len(calls) > step:
                raise OSError(5, "cut short")
        original(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(LedgerError, match="cut short"):
            upgrade(path, lambda: NOW)
    with pytest.raises(LedgerError):
        Ledger(path)
    assert upgrade(path, lambda: NOW) == 4
    with Ledger(path) as ledger:
        ledger.verify()
        assert ledger.events(1) == [EVENT] * 2
