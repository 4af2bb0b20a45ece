"""Signed snapshots of a ledger's history, so that opening a long ledger does not read all of it."""

from __future__ import annotations

import sqlite3

from murmur.privacy.ledger.entry import LedgerError
from murmur.privacy.ledger.history import History
from murmur.privacy.ledger.signature import Signer

EVERY = 10_000  # entries


def keep(database: sqlite3.Connection, history: History, signer: Signer) -> None:
    """Store ``history``, in the caller's transaction, if the last snapshot is far back.

    A snapshot's size grows with the number of clients, and so does the distance between two.
    """
    (newest,) = database.execute("SELECT coalesce(max(position), 0) FROM snapshots").fetchone()
    if history.position - newest < max(EVERY, 10 * len(history.spends)):
        return
    text = history.to_text()
    database.execute("DELETE FROM snapshots WHERE position < ?", [newest])
    database.execute(
        "INSERT INTO snapshots (position, history, signature) VALUES (?, ?, ?)",
        [history.position, text, signer.sign("snapshot", text)],
    )


def last(database: sqlite3.Connection, signer: Signer) -> History | None:
    """The last snapshot but one, so that the newest entries are always verified; None without.

    LedgerError if its signature does not hold.
    """
    row = database.execute(
        "SELECT history, signature FROM snapshots ORDER BY position DESC LIMIT 1 OFFSET 1"
    ).fetchone()
    if row is None:
        return None
    if not signer.holds("snapshot", *row):
        raise LedgerError("a snapshot was altered")
    return History.from_text(row[0])
