"""The ledger's SQLite database: its tables, opening it safely, and snapshots of its history.

Entries are append-only. The triggers stop mistakes; what an intruder cannot get round are the
signatures (``chain``). Replies are kept for as long as they may be asked for again, and a snapshot
can be computed anew, so rows of these two tables do go.
"""

import os
import sqlite3
from pathlib import Path

from murmur.privacy.ledger.chain import Header, History
from murmur.privacy.ledger.entry import Entry, LedgerError
from murmur.privacy.signing import Signer

COLUMNS = ", ".join(Entry._fields)
SNAPSHOT_EVERY = 10_000  # entries
_ADDED = ("one_run", "one_question", "confirmed", "one_closed")  # in format 3

_SCHEMA = {
    "header": "CREATE TABLE header (text TEXT NOT NULL) STRICT",
    "entries": """CREATE TABLE entries (
    position INTEGER PRIMARY KEY,
    time TEXT NOT NULL,
    kind TEXT NOT NULL
        CHECK (kind IN ('charge', 'answer', 'run', 'question', 'confirmed', 'closed')),
    client TEXT CHECK ((client IS NULL) = (kind != 'charge')),
    run TEXT NOT NULL,
    round INTEGER NOT NULL,
    purpose TEXT CHECK ((purpose IS NULL) = (kind IN ('answer', 'run', 'closed'))),
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
    "one_run": """CREATE UNIQUE INDEX one_run
    ON entries (run) WHERE kind = 'run'""",
    "one_question": """CREATE UNIQUE INDEX one_question
    ON entries (request) WHERE kind = 'question'""",
    "confirmed": """CREATE INDEX confirmed
    ON entries (request) WHERE kind = 'confirmed'""",
    "one_closed": """CREATE UNIQUE INDEX one_closed
    ON entries (run) WHERE kind = 'closed'""",
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

# What a ledger of formats 1 and 2 has in place of the above: it knows charges and answers only.
_BEFORE_3 = {
    **{name: made for name, made in _SCHEMA.items() if name not in _ADDED},
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
}


def connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """A durable connection to the existing database ``path``, in autocommit mode.

    Every commit is synced to the disk before it returns. ``busy_seconds``: how long a statement
    waits for another process. LedgerError where the file system has no write-ahead log.
    """
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

    The file is its owner's only (mode 600). LedgerError when it already holds entries.
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


def check_schema(database: sqlite3.Connection) -> None:
    """LedgerError unless the tables, indexes and triggers are exactly those of a known format.

    Compared by their SQL, letter by letter: a trigger that was dropped or changed is named.
    """
    found = _objects(database)
    if found == _BEFORE_3:
        return
    for name in sorted(found.keys() | _SCHEMA.keys()):
        if name not in found:
            raise LedgerError(f"the database's {name!r} is missing")
        if found[name] != _SCHEMA.get(name):
            raise LedgerError(f"the database's {name!r} is altered, or of another version")


def upgrade(database: sqlite3.Connection) -> None:
    """Let a ledger of an older format hold the entries of this one, in the caller's transaction.

    Entries stay as they were sealed, and so do the header and its digest. Reading needs no upgrade.
    """
    if _objects(database) != _BEFORE_3:
        return
    database.execute("CREATE TABLE kept AS SELECT * FROM entries ORDER BY position")
    database.execute("DROP TABLE entries")  # with its indexes and triggers
    database.execute(_SCHEMA["entries"])
    database.execute(f"INSERT INTO entries ({COLUMNS}) SELECT {COLUMNS} FROM kept")
    database.execute("DROP TABLE kept")
    there = _objects(database)
    for name, statement in _SCHEMA.items():
        if name not in there:
            database.execute(statement)


def _objects(database: sqlite3.Connection) -> dict[str, str]:
    """The statements that made what is in the database, by name."""
    return dict(database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))


def keep_snapshot(database: sqlite3.Connection, history: History, signer: Signer) -> None:
    """Store ``history``, in the caller's transaction, if the last snapshot is far back.

    With snapshots, opening a long ledger does not read all of it. A snapshot's size grows with
    the number of lives that clients have led, and so does the distance between two. The newest two
    are kept.
    """
    (newest,) = database.execute("SELECT coalesce(max(position), 0) FROM snapshots").fetchone()
    since = history.position - newest
    if since < SNAPSHOT_EVERY or since < 10 * len(set(history.spends.values())):
        return
    text = history.to_text()
    database.execute("DELETE FROM snapshots WHERE position < ?", [newest])
    database.execute(
        "INSERT INTO snapshots (position, history, signature) VALUES (?, ?, ?)",
        [history.position, text, signer.sign("snapshot", text)],
    )


def last_snapshot(database: sqlite3.Connection, signer: Signer) -> History | None:
    """The last snapshot but one, so that the newest entries are always verified; None without.

    LedgerError if its signature does not hold.
    """
    row = database.execute(
        "SELECT history, signature FROM snapshots ORDER BY position DESC LIMIT 1 OFFSET 1"
    ).fetchone()
    if row is None:
        return None
    if not signer.is_valid("snapshot", *row):
        raise LedgerError("a snapshot was altered")
    return History.from_text(row[0])
