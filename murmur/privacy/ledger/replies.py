"""Stored replies: small ones in a table of the ledger, large ones in files beside it.

What a reply was is in the chain, as the digest that its answer's entry has; here are the bytes. Of
a large reply the table's row holds none, and its file is named by the request. It is on disk before
the row is committed, and removed after the row is: a kill in between leaves a file too many, which
goes with the next reply that is stored.
"""

import hashlib
from collections.abc import Sequence

from murmur.files import replace_file, sync_folder
from murmur.privacy.ledger.entry import Entry, LedgerError
from murmur.privacy.ledger.log import Log

Reply = bytes | Sequence[memoryview]
"""All that a node sends, as one, or in pieces that follow each other: a large one need not be
copied."""

MAX_ROW_BYTES = 2**24  # bytes of a reply in the table; SQLite copies each several times


def digest_of(reply: Reply) -> str:
    """SHA-256, in hexadecimal."""
    state = hashlib.sha256()
    for piece in _pieces(reply):
        state.update(piece)
    return state.hexdigest()


class Replies:
    """Replies kept beside the ledger of ``log``; used inside its transactions.

    LedgerError, by every method, for what does not fit the chain.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._folder = log.path.with_name(log.path.name + ".replies")

    def has(self, request: str) -> bool:
        """True if the reply to ``request`` is kept."""
        found = self._log.execute("SELECT 1 FROM replies WHERE request = ?", request)
        return found.fetchone() is not None

    def put(self, charge: Entry, reply: Reply, keep_rounds: int) -> None:
        """Keep ``reply`` to the request of ``charge``; of its run, drop those of older rounds.

        Only those of its newest ``keep_rounds`` rounds stay.
        """
        pieces = _pieces(reply)
        row = b""
        if sum(len(piece) for piece in pieces) > MAX_ROW_BYTES:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            replace_file(self._folder / charge.request, *pieces)
        else:
            row = b"".join(pieces)
        oldest = charge.round - keep_rounds
        self._log.execute("DELETE FROM replies WHERE run = ? AND round <= ?", charge.run, oldest)
        self._keep_row(charge.run, charge.round, charge.request, row)

    def get(self, request: str, answer: Entry | None) -> bytes | None:
        """The reply to ``request``, None if it is not kept; LedgerError unless ``answer`` is of it.

        ``answer``: the entry that says that the request was answered.
        """
        query = "SELECT reply FROM replies WHERE request = ?"
        row = self._log.execute(query, request).fetchone()
        if row is None:
            return None
        reply: bytes = row[0]
        if answer is not None and not reply and answer.body != digest_of(b""):
            reply = self._file(request)
        if answer is None or digest_of(reply) != answer.body:
            raise LedgerError(
                f"the stored reply to request {request} is not the one that was given"
            )
        return reply

    def requests(self) -> list[str]:
        """To which a reply is kept."""
        return [request for (request,) in self._log.execute("SELECT request FROM replies")]

    def drop_files(self) -> None:
        """Remove the files of replies that are not kept, now that this is committed."""
        if not self._folder.exists():
            return
        with self._log.writing():
            kept = set(self.requests())
            for path in self._folder.iterdir():
                if path.name not in kept:
                    path.unlink()
            sync_folder(self._folder)

    def _keep_row(self, run: str, round: int, request: str, reply: bytes) -> None:
        columns = "(run, round, request, reply)"
        values = run, round, request, reply
        self._log.execute(f"INSERT INTO replies {columns} VALUES (?, ?, ?, ?)", *values)

    def _file(self, request: str) -> bytes:
        try:
            return (self._folder / request).read_bytes()
        except FileNotFoundError:
            raise LedgerError(f"the file of the reply to request {request} is missing") from None


def _pieces(reply: Reply) -> Sequence[memoryview]:
    if isinstance(reply, bytes):
        return [memoryview(reply)]
    return reply
