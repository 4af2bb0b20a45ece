"""From format 1, whose entries were sealed with a secret (HMAC-SHA256), to signed ones.

The old ledger is verified whole, anchor and stored replies included, before one entry is taken
over; any doubt refuses. Entries keep their place, time and contents, and the new header names the
last seal of the old chain. The old files stay beside the new ones as ``<ledger>.format1…``.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import sqlite3
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from murmur.privacy.ledger import schema
from murmur.privacy.ledger.entry import Entry, LedgerError
from murmur.privacy.ledger.key_and_anchor import KeyAndAnchor, sync_folder
from murmur.privacy.ledger.log import Log

_GENESIS = hashlib.sha256(b"murmur ledger, format 1").digest()
_COLUMNS = "position, time, kind, client, run, round, purpose, request, body, previous, seal, NULL"
_SUFFIXES = ("", ".key", ".head")
_SLOT_BYTES = 4096
_COMMIT = 10_000
_BUSY_SECONDS = 5.0


def upgrade(path: Path, clock: Callable[[], datetime]) -> int:
    """Turn the ledger ``path`` of format 1 into a signed one; the number of entries taken over.

    Killed at any instant, it leaves files that no device opens and that it can be run on again.
    Raises LedgerError if the ledger is not of format 1, is in use, or does not verify.
    """
    path = path.absolute()
    old, new = path.with_name(path.name + ".format1"), path.with_name(path.name + ".new")
    key_and_anchor = KeyAndAnchor(path)
    try:
        with key_and_anchor.locked(_BUSY_SECONDS):
            _settle(path)
            if _has_old_key(path):  # else an earlier attempt was cut short after this
                _keep(path, old)
            for suffix in (*_SUFFIXES, ".lock", "-wal", "-shm"):
                _beside(new, suffix).unlink(missing_ok=True)
            count = _copy(old, new, clock)
            for suffix in (".key", ".head", ""):  # a mixture of old and new is refused
                os.replace(_beside(new, suffix), _beside(path, suffix))
            _beside(new, ".lock").unlink()
            sync_folder(path.parent)
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(f"ledger {path}: {error}") from error
    finally:
        key_and_anchor.close()
    return count


def _settle(path: Path) -> None:
    """Empty the write-ahead log; LedgerError unless this is a database of format 1."""
    missing = [suffix for suffix in _SUFFIXES if not _beside(path, suffix).exists()]
    if missing:
        raise LedgerError(f"ledger {path}: {_beside(path, missing[0])} is missing")
    database = schema.connect(path, _BUSY_SECONDS)
    try:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        if "header" in tables or "entries" not in tables:
            raise LedgerError(f"ledger {path}: is not of format 1; nothing was changed")
        database.execute("PRAGMA journal_mode = DELETE")  # fails while somebody else has it open
    finally:
        database.close()


def _has_old_key(path: Path) -> bool:
    return b"PRIVATE KEY" not in _beside(path, ".key").read_bytes()


def _keep(path: Path, old: Path) -> None:
    """Give the old files second names."""
    for suffix in _SUFFIXES:
        _beside(old, suffix).unlink(missing_ok=True)
        os.link(_beside(path, suffix), _beside(old, suffix))
    sync_folder(path.parent)


def _copy(old: Path, new: Path, clock: Callable[[], datetime]) -> int:
    database = sqlite3.connect(f"{old.as_uri()}?mode=ro", uri=True)
    try:
        key = bytes.fromhex(_beside(old, ".key").read_text(encoding="ascii"))
        last = (0, _GENESIS)
        for entry in _verified(database, key):
            last = (entry.position, entry.seal)
        _check_anchor(database, _beside(old, ".head").read_bytes(), last, key)
        replies = _replies(database)
        continues = {"format": 1, "position": last[0], "seal": last[1].hex()}
        log = Log(new, create=True, clock=clock, busy_seconds=_BUSY_SECONDS, continues=continues)
        try:
            entries = _verified(database, key)
            while _append(log, entries):
                pass
            with log.writing():
                for reply in replies:
                    log.execute("INSERT INTO replies VALUES (?, ?, ?, ?)", *reply)
        finally:
            log.close()
    except ValueError as error:
        raise LedgerError(f"ledger {old}: {error}") from error
    finally:
        database.close()
    return last[0]


def _verified(database: sqlite3.Connection, key: bytes) -> Iterator[Entry]:
    position, seal = 0, _GENESIS
    for row in database.execute(f"SELECT {_COLUMNS} FROM entries ORDER BY position"):
        entry = Entry._make(row)
        if (entry.position, entry.previous) != (position + 1, seal):
            raise LedgerError(f"{entry}: does not follow entry {position}; nothing was changed")
        if not _holds(key, "entry", entry.encoding(), entry.seal):
            raise LedgerError(f"{entry}: does not match its seal; nothing was changed")
        position, seal = entry.position, entry.seal
        yield entry


def _check_anchor(
    database: sqlite3.Connection, content: bytes, last: tuple[int, bytes], key: bytes
) -> None:
    anchors = []
    for start in (0, _SLOT_BYTES):
        line = content[start : start + _SLOT_BYTES].decode("ascii", "replace").strip()
        text, _, seal = line.rpartition(" ")
        try:
            signed = _holds(key, "anchor", text, bytes.fromhex(seal))
        except ValueError:
            signed = False
        if signed:
            position, _, anchored = text.partition(" ")
            anchors.append((int(position), bytes.fromhex(anchored)))
    newest = max(anchors, default=(-1, b""))
    # A power cut while an anchor was written left the database ahead of the other one.
    if newest[0] < 0 or (len(anchors) == 1 and newest[0] == last[0]):
        raise LedgerError("the anchor is damaged; nothing was changed")
    query = "SELECT position, seal FROM entries WHERE position = ?"
    row = database.execute(query, [newest[0]]).fetchone()
    if newest[0] > 0 and row != newest:
        raise LedgerError("it was cut short or replaced by an old copy; nothing was changed")


def _replies(database: sqlite3.Connection) -> list[tuple]:
    query = """SELECT replies.request, replies.run, replies.round, reply, body FROM replies
    LEFT JOIN entries ON entries.request = replies.request AND kind = 'answer'"""
    found = database.execute(query).fetchall()
    for request, _, _, reply, digest in found:
        if hashlib.sha256(reply).hexdigest() != digest:
            raise LedgerError(f"the reply to {request} is not the one given; nothing was changed")
    return [row[:4] for row in found]


def _append(log: Log, entries: Iterator[Entry]) -> bool:
    """Take over some entries, in one commit; whether there may be more."""
    with log.writing() as transaction:
        for count, entry in enumerate(entries, 1):
            transaction.time = entry.time
            if entry.client is not None and entry.purpose is not None:
                asked = (entry.run, entry.round, entry.purpose, entry.request)
                transaction.charge(entry.client, *asked, entry.body)
            else:
                transaction.answer(entry.run, entry.round, entry.request, entry.body)
            if count == _COMMIT:
                return True
    return False


def _holds(key: bytes, purpose: str, text: str, seal: bytes) -> bool:
    return hmac.compare_digest(hmac.digest(key, f"{purpose}\0{text}".encode(), "sha256"), seal)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
