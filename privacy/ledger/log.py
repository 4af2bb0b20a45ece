"""An append-only, sealed and anchored log in one SQLite file that many processes write.

The ledger's rules (what may be charged, what is answered again) are in ``ledger.py``; here is
only what makes its entries durable and tamper-evident.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from privacy.ledger import schema
from privacy.ledger.entry import Entry, LedgerError
from privacy.ledger.history import History, Sealer, Transaction
from privacy.ledger.key_and_anchor import Anchor, Sidecar

_SNAPSHOT_EVERY = 10_000


class Log:
    """The entries in ``path`` and the ``history`` that follows from them.

    Opening takes the history as far as entry ``base`` from a sealed snapshot and verifies every
    entry after it: at least the last 10,000, in a shorter log all. Each ``reading`` and
    ``writing`` verifies what other processes have added since. All failures come out as
    LedgerError.
    """

    def __init__(
        self, path: Path, *, create: bool, clock: Callable[[], datetime], busy_seconds: float
    ) -> None:
        self.path = path
        self.history = History()
        self._clock = clock
        self._busy_seconds = busy_seconds
        self._sidecar = Sidecar(path)
        self._thread_lock = threading.RLock()
        self._process = os.getpid()
        self._database: sqlite3.Connection | None = None
        try:
            with self._reasons():
                if create:
                    path.parent.mkdir(parents=True, exist_ok=True)
                elif not path.exists():
                    raise LedgerError("there is no such ledger: never begun, or removed")
                with self._locked():
                    self._open(create)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The log as of now, with ``history`` up to date."""
        with self._thread_lock, self._reasons():
            self._catch_up()
            yield

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """One transaction; what was appended to it is on disk when the block has ended.

        ``history`` takes the new entries in at the end. An exception undoes everything.
        """
        with self._thread_lock, self._reasons(), self._locked():
            self.execute("BEGIN IMMEDIATE")
            try:
                self._catch_up()
                time = self._clock().astimezone(UTC).isoformat(timespec="milliseconds")
                transaction = Transaction(self.history, self.sealer, time)
                yield transaction
                if transaction.entries:
                    self._insert(transaction.entries)
                self.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self.execute("ROLLBACK")
                raise
            for entry in transaction.entries:
                self.history.add(entry)
            if transaction.entries:
                self._write_anchor()

    def rows(self, clause: str, *values: object) -> Iterator[Entry]:
        """Entries as the database has them, not verified."""
        cursor = self.execute(f"SELECT {schema.COLUMNS} FROM entries {clause}", *values)
        return map(Entry._make, cursor)

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        """Run one SQL statement."""
        return self._connection.execute(statement, values)

    @contextmanager
    def verified(self) -> Iterator[None]:
        """Read all there is with writers kept out, then let the caller look at its own tables."""
        with self._thread_lock, self._reasons(), self._locked():
            schema.check(self._connection)
            self._check_database()
            self._catch_up()
            history = History()
            for _ in history.verified(self.rows("ORDER BY position"), self.sealer):
                pass
            if history != self.history:
                raise LedgerError("the sealed snapshot does not follow from the entries")
            self._check_anchor()
            yield

    def close(self) -> None:
        """Let go of the files."""
        with self._thread_lock:
            if self._database is not None and self._process == os.getpid():
                self._database.close()
            self._database = None
            self._sidecar.close()

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._database is None:
            raise LedgerError("it was closed")
        if self._process != os.getpid():
            raise LedgerError("it was opened in another process; open it again in this one")
        return self._database

    @contextmanager
    def _reasons(self) -> Iterator[None]:
        try:
            yield
        except LedgerError as error:
            raise LedgerError(f"ledger {self.path}: {error}") from error
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"ledger {self.path}: {error}") from error

    def _locked(self) -> AbstractContextManager[None]:
        return self._sidecar.locked(self._busy_seconds)

    def _open(self, create: bool) -> None:
        if not self._sidecar.key.exists():
            if not create:
                raise LedgerError(f"the key file {self._sidecar.key} is missing")
            self._begin()
        if not self.path.exists():
            raise LedgerError("the database is missing, but its key file is there")
        self.sealer: Sealer = self._sidecar.read_key()
        self._database = schema.connect(self.path, self._busy_seconds)
        schema.check(self._database)
        self.history = self._snapshot() or History()
        self.base = self.history.position
        if self.base == 0:
            self._check_database()
        self._catch_up()
        if self._check_anchor().position < self.history.position:
            # A process was killed between its commit and its anchor: what it committed counts.
            self._write_anchor()

    def _begin(self) -> None:
        if self._sidecar.was_used():
            raise LedgerError(f"the key file {self._sidecar.key} is missing")
        schema.create(self.path, self._busy_seconds)
        self._sidecar.create_key(Anchor(self.history.position, self.history.seal))

    def _check_database(self) -> None:
        """LedgerError if SQLite itself finds damage; reads the whole file."""
        problem = self.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if problem != "ok":
            raise LedgerError(f"the database is damaged: {problem}")

    def _catch_up(self) -> None:
        """Take in what was appended since; the last entry known must still be there."""
        known = self.history
        rows = self.rows("WHERE position >= ? ORDER BY position", max(1, known.position))
        if known.position:
            last = next(rows, None)
            if last is None or (last.position, last.seal) != (known.position, known.seal):
                raise LedgerError(
                    f"entry {known.position} was there and is gone: the database was cut short, "
                    "or replaced by an old copy"
                )
        for _ in known.verified(rows, self.sealer):
            pass

    def _insert(self, pending: list[Entry]) -> None:
        self._take_snapshot()
        marks = ", ".join("?" * len(Entry._fields))
        self._connection.executemany(
            f"INSERT INTO entries ({schema.COLUMNS}) VALUES ({marks})", pending
        )

    def _take_snapshot(self) -> None:
        """Keep the history as it was before this transaction, if the last snapshot is far back."""
        position = self.history.position
        (last,) = self.execute("SELECT coalesce(max(position), 0) FROM snapshots").fetchone()
        if position - last < _snapshot_distance(self.history):
            return
        text = self.history.to_text()
        self.execute("DELETE FROM snapshots WHERE position < ?", last)
        self.execute(
            "INSERT INTO snapshots (position, history, seal) VALUES (?, ?, ?)",
            position,
            text,
            self.sealer.seal("snapshot", text),
        )

    def _snapshot(self) -> History | None:
        """The last snapshot but one, so that the newest entries are always verified."""
        row = self.execute(
            "SELECT history, seal FROM snapshots ORDER BY position DESC LIMIT 1 OFFSET 1"
        ).fetchone()
        if row is None:
            return None
        if not self.sealer.holds("snapshot", *row):
            raise LedgerError("a snapshot was altered")
        return History.from_text(row[0])

    def _check_anchor(self) -> Anchor:
        anchor, damaged = self._sidecar.read_anchor(self.sealer)
        if anchor.position > self.history.position:
            raise LedgerError(
                f"it ends at entry {self.history.position}, but had {anchor.position}: the "
                "database was cut short, or replaced by an old copy"
            )
        if damaged and anchor.position == self.history.position:
            # A power cut while the anchor was written comes after a commit, so leaves the
            # database ahead of the other anchor.
            raise LedgerError(f"the anchor {self._sidecar.head} is damaged")
        if anchor.position > 0:
            entry = next(self.rows("WHERE position = ?", anchor.position), None)
            if entry is None or self.sealer.check(entry).seal != anchor.seal:
                raise LedgerError(f"entry {anchor.position} is not the one that was anchored")
        return anchor

    def _write_anchor(self) -> None:
        anchor = Anchor(self.history.position, self.history.seal)
        self._sidecar.write_anchor(anchor, self.sealer)


def _snapshot_distance(history: History) -> int:
    """Entries between snapshots: a snapshot's size grows with the number of clients."""
    return max(_SNAPSHOT_EVERY, 10 * len(history.spends))
