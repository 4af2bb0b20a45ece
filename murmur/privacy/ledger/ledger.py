"""The ledger's public interface."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from murmur.privacy.events import ComposedEvent, Event
from murmur.privacy.ledger.entry import (
    Charge,
    Entry,
    LedgerError,
    Outcome,
    composed,
    event_from_text,
    require_digest,
)
from murmur.privacy.ledger.header import Header
from murmur.privacy.ledger.log import Log
from murmur.privacy.ledger.rules import Admission, Batch, admitted_reply, answer, kept_reply

_PAGE = 1_000
_NO_OTHER = "no other ledger counts what this device has released"


def _now() -> datetime:
    return datetime.now(UTC)


class Ledger:
    """What the clients of this node have released, ever.

    ``path``: the database; its ``.key``, ``.head`` and ``.lock`` files lie beside it. With
    ``create=False`` a ledger that is not there is refused rather than begun; with ``expected``, so
    is every one that does not have this ``id``. ``clock`` gives the time that entries carry. POSIX,
    on a local disk. Threads may share a ledger, processes open their own.

    Opening verifies all entries of a ledger of fewer than 10,000, and those since the last signed
    snapshot of a longer one; ``verify`` always reads everything. Every method raises LedgerError
    when the ledger is damaged, altered, cut short or unusable.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        create: bool = True,
        expected: str | None = None,
        clock: Callable[[], datetime] = _now,
        busy_seconds: float = 30.0,
    ) -> None:
        self.path = Path(path).absolute()
        if expected is not None and not self.path.exists():
            raise LedgerError(f"ledger {self.path}: {expected} is missing; {_NO_OTHER}")
        self._log = Log(self.path, create=create, clock=clock, busy_seconds=busy_seconds)
        if expected not in (None, self.id):
            self.close()
            raise LedgerError(f"ledger {self.path}: is {self.id}, not {expected}; {_NO_OTHER}")

    @property
    def id(self) -> str:
        """32 hex digits that name this ledger: its key and its beginning."""
        return self._log.header.id

    @property
    def header(self) -> Header:
        """What the ledger says of itself: its public key, and when it was begun."""
        return self._log.header

    def sign_export(self, position: int, seal: str, time: str) -> str:
        """The device's signature, in hex, that entry ``position`` was the last at ``time``."""
        return self._log.signer.sign("export", f"{position} {seal} {time}").hex()

    def charge(self, charges: Sequence[Charge], admit: Admission | None = None) -> list[Outcome]:
        """Charge releases before they happen, all in one transaction; one outcome for each.

        ``admit`` decides while writers are kept out, so that no two processes can each find room
        for the same last bit of a budget. It is asked again about a charge that was made before
        but never answered. A refused charge leaves no entry and does not touch the others.
        """
        if not charges:
            return []
        with self._log.writing() as transaction:
            batch = Batch(self._log, transaction, admit)
            return [batch.decide(charge) for charge in charges]

    def store_reply(
        self,
        request: str,
        reply: bytes,
        admit: Admission | None = None,
        *,
        keep_rounds: int = 1,
    ) -> bytes:
        """Commit the answer to ``request``; returns the bytes that may now leave.

        These are ``reply``, or, where ``admit`` lets them out as in ``Ledger.reply``, those of
        another process that answered the same request first.
        Of the same run, only replies of the newest ``keep_rounds`` rounds are kept; what older
        ones answered stays answered. Raises Refusal when ``request`` was answered and its reply
        is no longer kept. Where nothing was charged, the reply holds nothing of a client's and
        is not stored.
        """
        require_digest("request", request)
        if keep_rounds < 1:
            raise ValueError(f"keep_rounds={keep_rounds}: must be at least 1")
        with self._log.writing() as transaction:
            return answer(self._log, transaction, request, reply, keep_rounds, admit)

    def reply(self, request: str, admit: Admission | None = None) -> bytes | None:
        """The stored answer of an earlier identical request, byte for byte; None without one.

        ``admit`` is asked about each release that it holds, beside all else that its client has
        spent; Refusal where it refuses one. Nothing is charged again.
        """
        with self._log.reading():
            return admitted_reply(self._log, request, admit)

    def spent(self, client: int | str) -> ComposedEvent:
        """All that ``client`` has released in its life, equal releases counted together."""
        with self._log.reading():
            return composed(self._log.history.spends.get(str(client), {}))

    def events(self, client: int | str, run: str | None = None) -> list[Event]:
        """All releases of ``client``, in ``run`` or ever; equal ones stand together."""
        if run is None:
            with self._log.reading():
                tally = Counter(self._log.history.spends.get(str(client), {}))
        else:
            tally = Counter(entry.body for entry in self.entries(client, run))
        return [event_from_text(text) for text in sorted(tally.elements())]

    def releases(self) -> int:
        """How many releases were ever charged, of all clients together."""
        with self._log.reading():
            return sum(tally.total() for tally in self._log.history.spends.values())

    def clients(self) -> list[str]:
        """Every client that was ever charged; numbers first, in their order."""
        with self._log.reading():
            return sorted(self._log.history.spends, key=_natural)

    def entries(self, client: int | str | None = None, run: str | None = None) -> Iterator[Entry]:
        """Entries in order, each covered by a signature; of one client or run, if named."""
        where = "position > ?"
        values: list[int | str] = [0]
        for column, value in (("client", client), ("run", run)):
            if value is not None:
                where += f" AND {column} = ?"
                values.append(str(value))
        while True:
            with self._log.reading():
                rows = self._log.rows(f"WHERE {where} ORDER BY position LIMIT {_PAGE}", *values)
                page = [self._log.authentic(entry) for entry in rows]
            yield from page
            if len(page) < _PAGE:
                return
            values[0] = page[-1].position

    def verify(self) -> None:
        """Read everything: each entry, its place in the chain, the anchor, the stored replies.

        Raises LedgerError that says which entry is wrong, and how.
        """
        with self._log.verified():
            for (request,) in self._log.execute("SELECT request FROM replies").fetchall():
                kept_reply(self._log, request)

    def close(self) -> None:
        """Let go of the files."""
        self._log.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _natural(name: str) -> tuple[bool, int, str]:
    number = name.isdecimal()
    return (not number, len(name) if number else 0, name)
