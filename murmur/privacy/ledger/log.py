"""An append-only, signed and anchored log in one SQLite file that many processes write.

The ledger's rules (what may be charged, what is answered again) are in ``ledger``. Here is what
keeps database, key and anchor together: one writer at a time, whose entries are committed and then
anchored, and readers who verify what others have added before they use it.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from murmur.checks import this_process
from murmur.privacy.ledger import database
from murmur.privacy.ledger.chain import (
    Header,
    History,
    LedgerSigner,
    Transaction,
    check,
    verify_chain,
)
from murmur.privacy.ledger.entry import Entry, LedgerError
from murmur.privacy.ledger.key_and_anchor import Anchor, KeyAndAnchor
from murmur.privacy.signing import Signer

_MAGIC = b"SQLite format 3\0"  # how each of its databases begins

# A clock may be put right by this much without anybody being asked.
_CLOCK_STEP = timedelta(seconds=60)


class Log:
    """The entries in ``path`` and the ``history`` that follows from them.

    Opening takes the history as far as entry ``base`` from a signed snapshot and verifies every
    entry after it: at least the last 10,000, in a shorter log all. Each ``reading`` and
    ``writing`` verifies what other processes have added since. Threads may share a log; a process
    that was forked must open its own. All failures come out as LedgerError, which begins with the
    log's path.

    Args:
        path: the database; key, anchor and lock lie beside it.
        create: whether a log that is not there is begun, rather than refused.
        clock: the time of day, with a time zone.
        busy_seconds: how long to wait for another process that writes.

    Attributes:
        header: what the log says of itself.
        history: what follows from the entries so far; read it inside ``reading`` or ``writing``.
        signer: the device's key.
        base: entries up to this position were taken from a snapshot and not read.
    """

    header: Header
    history: History
    signer: Signer
    base: int

    def __init__(
        self,
        path: Path,
        *,
        create: bool,
        clock: Callable[[], datetime],
        busy_seconds: float,
    ) -> None:
        self.path = path
        self._clock = clock
        self._authentic: dict[int, bytes] = {}
        self._busy_seconds = busy_seconds
        self._key_and_anchor = KeyAndAnchor(path)
        self._thread_lock = threading.RLock()
        self._process = this_process()
        self._database: sqlite3.Connection | None = None
        try:
            with self._reasons():
                if create:
                    path.parent.mkdir(parents=True, exist_ok=True)
                elif not path.exists():
                    raise LedgerError("there is no such ledger: never begun, or removed")
                else:
                    _require_database(path)
                with self._locked():
                    self._open(create)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The log as of now, with ``history`` up to date; nobody is kept from writing."""
        with self._thread_lock, self._reasons():
            self._catch_up()
            yield

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """One transaction; what was appended to it is on disk when the block has ended.

        ``history`` takes the new entries in at the end. An exception in the block undoes
        everything. Killed between the commit and the anchor, the entries count: the next process
        that opens the log writes the anchor.
        """
        with self._thread_lock, self._reasons(), self._locked():
            self.execute("BEGIN IMMEDIATE")
            try:
                self._catch_up()
                database.upgrade(self._connection)
                transaction = Transaction(self.history, self._time())
                yield transaction
                entries = transaction.entries(self.signer)
                if entries:
                    database.keep_snapshot(self._connection, self.history, self.signer)
                    marks = ", ".join("?" * len(Entry._fields))
                    insert = f"INSERT INTO entries ({database.COLUMNS}) VALUES ({marks})"
                    self._connection.executemany(insert, entries)
                self.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self.execute("ROLLBACK")
                raise
            if entries:
                self.history.add(entries)
                self._authentic = {entry.position: entry.seal for entry in entries}
                self._write_anchor()

    def rows(self, clause: str, *values: object) -> Iterator[Entry]:
        """Entries as the database has them, not verified; ``clause``: WHERE and what follows."""
        cursor = self.execute(f"SELECT {database.COLUMNS} FROM entries {clause}", *values)
        return map(Entry._make, cursor)

    def find(self, clause: str, *values: object) -> Entry | None:
        """The first entry of ``rows``, if there is one, ``authentic``; None without one."""
        entry = next(self.rows(clause, *values), None)
        if entry is None:
            return None
        return self.authentic(entry)

    def authentic(self, entry: Entry) -> Entry:
        """``entry``, found by what it says; LedgerError unless the device's signature covers it.

        The signature is that of its commit, so the entries between are read as well, and
        remembered for others of the same commit.
        """
        check(entry)
        if self._authentic.get(entry.position) != entry.seal:
            rows = self.rows("WHERE position >= ? ORDER BY position", entry.position)
            commit = _until_signed(rows)
            for group in verify_chain(entry.position - 1, entry.previous, commit, self.signer):
                self._authentic = {found.position: found.seal for found in group}
            if self._authentic.get(entry.position) != entry.seal:
                raise LedgerError(f"{entry}: was replaced while it was read")
        return entry

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        """Run one SQL statement; inside ``reading``, ``writing`` or ``verified`` only."""
        return self._connection.execute(statement, values)

    @contextmanager
    def verified(self) -> Iterator[None]:
        """Read all there is with writers kept out, then let the caller look at its own tables.

        LedgerError for anything that opening would refuse, wherever in the log it is, and where a
        signed snapshot says something else than the entries.
        """
        with self._thread_lock, self._reasons(), self._locked():
            database.check_schema(self._connection)
            self._check_database()
            self._catch_up()
            history = self._nothing()
            history.append_verified(self.rows("ORDER BY position"), self.signer)
            if history != self.history:
                raise LedgerError("the signed snapshot does not follow from the entries")
            self._check_anchor()
            yield

    def close(self) -> None:
        """Let go of the files; in a forked process the parent's connection stays untouched."""
        with self._thread_lock:
            if self._database is not None and self._process == this_process():
                self._database.close()
            self._database = None

    @property
    def _connection(self) -> sqlite3.Connection:
        """The database; LedgerError once it was closed, and in a forked process."""
        if self._database is None:
            raise LedgerError("it was closed")
        if self._process != this_process():
            raise LedgerError("it was opened in another process; open it again in this one")
        return self._database

    @contextmanager
    def _reasons(self) -> Iterator[None]:
        """Turn every failure into a LedgerError that names the log."""
        try:
            yield
        except (LedgerError, sqlite3.Error, OSError) as error:
            raise LedgerError(f"ledger {self.path}: {error}") from error

    def _locked(self) -> AbstractContextManager[None]:
        return self._key_and_anchor.locked(self._busy_seconds)

    def _open(self, may_begin: bool) -> None:
        """Verify header, schema, entries and anchor, under the writers' lock."""
        if not self._key_and_anchor.key.exists():
            if not may_begin:
                raise LedgerError(f"the key file {self._key_and_anchor.key} is missing")
            self._begin()
        if not self.path.exists():
            raise LedgerError("the database is missing, but its key file is there")
        self.signer = self._key_and_anchor.read_key()
        self._database = database.connect(self.path, self._busy_seconds)
        database.check_schema(self._database)
        self.header = self._read_header()
        self.history = database.last_snapshot(self._database, self.signer) or self._nothing()
        self.base = self.history.position
        if self.base == 0:
            self._check_database()
        self._catch_up()
        if self._check_anchor().position < self.history.position:
            # A process was killed between its commit and its anchor: what it committed counts.
            self._write_anchor()

    def _begin(self) -> None:
        """Make database, anchor and key; LedgerError where there was a ledger before."""
        if self._key_and_anchor.was_used():
            raise LedgerError(f"the key file {self._key_and_anchor.key} is missing")
        signer = LedgerSigner.generate()
        header = Header.of(_text(self._clock()), signer.public_key)
        database.create(self.path, header, self._busy_seconds)
        self._key_and_anchor.keep_key(signer, Anchor(0, header.text_digest))

    def _nothing(self) -> History:
        """The history of a log without entries."""
        return History(0, self.header.text_digest)

    def _read_header(self) -> Header:
        """The only row of the header; LedgerError unless its key is the key file's."""
        found = self.execute("SELECT text FROM header").fetchall()
        if len(found) != 1:
            raise LedgerError("the ledger's header was altered")
        header = Header(found[0][0])
        if header.key != self.signer.public_key:
            raise LedgerError(f"the key file {self._key_and_anchor.key} belongs to another ledger")
        return header

    def _time(self) -> str:
        """Now, or the last entry's time if a clock was put right by a little since.

        LedgerError where the clock stands further back: time in the ledger never decreases.
        """
        now = self._clock()
        last = self.history.time
        if _text(now + _CLOCK_STEP) < last:
            raise LedgerError(
                f"this device's clock says {_text(now)}, but the last entry is of {last}: time "
                "does not run backwards, so nothing is released until the clock is right"
            )
        return max(_text(now), last)

    def _check_database(self) -> None:
        """Run SQLite's integrity check over the whole file; LedgerError for any damage.

        Once when a log is opened that has no snapshot yet, and by ``verified``.
        """
        problem = self.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if problem != "ok":
            raise LedgerError(f"the database is damaged: {problem}")

    def _catch_up(self) -> None:
        """Take in what was appended since; the last entry known must still be there.

        LedgerError where it is not, or where an entry that was appended does not verify.
        """
        known = self.history
        rows = self.rows("WHERE position >= ? ORDER BY position", max(1, known.position))
        if known.position:
            last = next(rows, None)
            if last is None or (last.position, last.seal) != (known.position, known.seal):
                raise LedgerError(
                    f"entry {known.position} was there and is gone: the database was cut short, "
                    "or replaced by an old copy"
                )
        known.append_verified(rows, self.signer)

    def _check_anchor(self) -> Anchor:
        """The newest anchor; LedgerError where it does not fit the entries."""
        anchor, damaged = self._key_and_anchor.read_anchor(self.signer)
        if anchor.position > self.history.position:
            raise LedgerError(
                f"it ends at entry {self.history.position}, but had {anchor.position}: the "
                "database was cut short, or replaced by an old copy"
            )
        if damaged and anchor.position == self.history.position:
            # A power cut while the anchor was written comes after a commit, so leaves the
            # database ahead of the other anchor.
            raise LedgerError(f"the anchor {self._key_and_anchor.head} is damaged")
        if anchor.position > 0:
            entry = next(self.rows("WHERE position = ?", anchor.position), None)
            if entry is None or check(entry).seal != anchor.seal:
                raise LedgerError(f"entry {anchor.position} is not the one that was anchored")
        return anchor

    def _write_anchor(self) -> None:
        anchor = Anchor(self.history.position, self.history.seal)
        self._key_and_anchor.write_anchor(anchor, self.signer)


def _until_signed(entries: Iterator[Entry]) -> Iterator[Entry]:
    """``entries`` up to the end of a commit."""
    for entry in entries:
        yield entry
        if entry.signature is not None:
            return


def _text(time: datetime) -> str:
    """A time as entries carry it: UTC, to the millisecond; texts sort as times do."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds")


def _require_database(path: Path) -> None:
    """LedgerError where ``path`` holds something else than SQLite's database; nothing is made."""
    with open(path, "rb") as file:
        head = file.read(len(_MAGIC))
    if head and head != _MAGIC:
        raise LedgerError("this file is no ledger, or its first bytes are damaged")
