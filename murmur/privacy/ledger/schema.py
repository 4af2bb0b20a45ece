"""The ledger's tables, and opening them safely."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from murmur.privacy.ledger.entry import LedgerError
from murmur.privacy.ledger.header import Header

COLUMNS = (
    "position, time, kind, client, run, round, purpose, request, body, previous, seal, signature"
)

# Entries are append-only; the signatures, not the triggers, are what an intruder cannot get
# round.
# Replies are kept for as long as they may be asked for again, and a snapshot can be computed anew.
_SCHEMA = {
    "header": "CREATE TABLE header (text TEXT NOT NULL) STRICT",
    "entries": """CREATE TABLE entries (
    position INTEGER PRIMARY KEY,
    time TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('charge', 'answer')),
    client TEXT CHECK ((client IS NULL) = (kind = 'answer')),
    run TEXT NOT NULL,
    round INTEGER NOT NULL,
    purpose TEXT CHECK ((purpose IS NULL) = (kind = 'answer')),
    request TEXT NOT NULL,
    body TEXT NOT NULL,
    previous BLOB NOT NULL,
    seal BLOB NOT NULL,
    signature BLOB
) STRICT""",
    "one_charge": """CREATE UNIQUE INDEX one_charge
    ON entries (run, round, purpose, client) WHERE kind = 'charge'""",
    "one_answer": """CREATE UNIQUE INDEX one_answer
    ON entries (request) WHERE kind = 'answer'""",
    "replies": """CREATE TABLE replies (
    request TEXT PRIMARY KEY,
    run TEXT NOT NULL,
    round INTEGER NOT NULL,
    reply BLOB NOT NULL
) STRICT""",
    "snapshots": """CREATE TABLE snapshots (
    position INTEGER PRIMARY KEY,
    history TEXT NOT NULL,
    signature BLOB NOT NULL
) STRICT""",
    "entries_in_order": """CREATE TRIGGER entries_in_order BEFORE INSERT ON entries
WHEN NEW.position != (SELECT coalesce(max(position), 0) + 1 FROM entries)
BEGIN SELECT raise(ABORT, 'ledger entries are appended in order'); END""",
    "entries_never_change": """CREATE TRIGGER entries_never_change BEFORE UPDATE ON entries
BEGIN SELECT raise(ABORT, 'ledger entries never change'); END""",
    "entries_never_go": """CREATE TRIGGER entries_never_go BEFORE DELETE ON entries
BEGIN SELECT raise(ABORT, 'ledger entries are never removed'); END""",
}


def connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """A durable connection to the existing database ``path``, in autocommit mode."""
    database = sqlite3.connect(
        f"{path.as_uri()}?mode=rw",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
    )
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA synchronous = FULL")
    mode = database.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        database.close()
        raise LedgerError(f"{path}: this file system has no write-ahead log; use a local disk")
    return database


def create(path: Path, header: Header, busy_seconds: float) -> None:
    """Create the tables in ``path``, empty but for ``header``; again, if that was cut short.

    LedgerError when the database already holds entries.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    database = connect(path, busy_seconds)
    try:
        database.execute("BEGIN IMMEDIATE")
        if not _objects(database):
            for statement in _SCHEMA.values():
                database.execute(statement)
        elif database.execute("SELECT count(*) FROM entries").fetchone()[0]:
            raise LedgerError(f"{path} holds entries but its key file is missing")
        database.execute("DELETE FROM header")
        database.execute("INSERT INTO header VALUES (?)", [header.text])
        database.execute("COMMIT")
    finally:
        database.close()


def check(database: sqlite3.Connection) -> None:
    """LedgerError unless the tables, indexes and triggers are exactly those of this version."""
    found = _objects(database)
    for name in sorted(found.keys() | _SCHEMA.keys()):
        if found.get(name) != _SCHEMA.get(name):
            what = "missing" if name not in found else "altered, or of another version"
            raise LedgerError(f"the database's {name!r} is {what}")


def _objects(database: sqlite3.Connection) -> dict[str, str]:
    return dict(database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
