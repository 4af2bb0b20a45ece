"""The ledger's rules: what may be charged, what is answered again, what is refused.

A client makes each release (run, round, purpose) once. The same request is charged once and, when
its reply was stored, answered with the same bytes; another request for the same release is
refused. What ``admit`` (the owner's policy) says is asked while other writers are kept out.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from murmur.privacy.envelope import Envelope
from murmur.privacy.events import ComposedEvent, Event
from murmur.privacy.ledger.asked import Asked, Confirmed
from murmur.privacy.ledger.batch import (
    CLOSED,
    IS_BLOCK,
    Admission,
    Batch,
    answer_to,
    ask,
    closed_reason,
    closing_of,
    header_of,
    is_closed,
    reply_dropped,
)
from murmur.privacy.ledger.blocks import NOTHING
from murmur.privacy.ledger.chain import Header
from murmur.privacy.ledger.entry import (
    Charge,
    Entry,
    LedgerError,
    Outcome,
    composed,
    event_from_text,
    require_digest,
)
from murmur.privacy.ledger.log import Log
from murmur.privacy.ledger.replies import Replies, Reply, digest_of
from murmur.privacy.policy import Refusal
from murmur.privacy.run_header import SignedHeader

_PAGE_ENTRIES = 1_000
_NO_OTHER = "no other ledger counts what this device has released"
_NO_HEADER = "0" * 64  # in place of a header's digest


def _now() -> datetime:
    return datetime.now(UTC)


class Ledger:
    """Releases of the clients of this node, over their whole life.

    Opening verifies all entries of a ledger of fewer than 10,000, and those since the last signed
    snapshot of a longer one; ``verify`` always reads everything. POSIX, on a local disk. Threads
    may share a ledger, processes open their own.

    Args:
        path: the database; its ``.key``, ``.head`` and ``.lock`` files lie beside it, and the
            folder ``.replies`` of large ones.
        create: False refuses a ledger that is not there, rather than beginning it.
        expected: the ``id`` that the ledger must have; any other is refused, and so is a new one.
        clock: gives the time that entries carry.
        busy_seconds: how long to wait for another process that writes.

    Raises:
        LedgerError: by every method, when the ledger is damaged, altered, cut short or unusable.
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
        self._replies = Replies(self._log)
        if expected not in (None, self.id):
            self.close()
            raise LedgerError(f"ledger {self.path}: is {self.id}, not {expected}; {_NO_OTHER}")

    @property
    def id(self) -> str:
        """32 hex digits that name this ledger: its key and its beginning.

        A policy that names it (``ledger: ID``) refuses everything where another ledger lies here.
        """
        return self._log.header.id

    @property
    def header(self) -> Header:
        """Header of the ledger: its public key, and when it was begun."""
        return self._log.header

    def sign_export(self, position: int, seal: str, time: str) -> str:
        """The device's signature, in hex, that entry ``position`` was the last at ``time``.

        ``seal``: of that entry, in hex. ``time``: as it stands in the export. With it nobody can
        cut the export short.
        """
        return self._log.signer.sign("export", f"{position} {seal} {time}").hex()

    def charge(
        self,
        charges: Sequence[Charge],
        admit: Admission | None = None,
        *,
        asked: Asked | None = None,
        blocks: bool = False,
    ) -> list[Outcome]:
        """Charge releases before they happen, all in one transaction; one outcome for each.

        ``admit`` decides while writers are kept out, so that no two processes can each find room
        for the same last bit of a budget. It is asked again about a charge that was made before
        but never answered. A refused charge leaves no entry and does not touch the others.

        ``asked``: what the request says that all of them are for. It is kept with the first new
        charge, and the run's header with the first of the run. Where it is binding, another header
        of the run, or another run of the header, refuses every charge.

        ``blocks``: charges that are alike but for the client stand together in one entry for up to
        1,024 clients, and ``admit`` is asked once for all of those who have spent the same. For
        simulations, where no client's life is told from another's by who it is.
        """
        if not charges:
            return []
        with self._log.writing() as transaction:
            names = {charge.client_id for charge in charges}
            batch = Batch(self._log, self._replies, transaction, admit, asked, blocks, names)
            outcomes = [batch.decide(charge) for charge in charges]
            batch.append()
            return outcomes

    def store_reply(
        self,
        request: str,
        reply: Reply,
        admit: Admission | None = None,
        *,
        keep_rounds: int = 1,
    ) -> Reply:
        """Commit the answer to ``request``; returns the bytes that may now leave.

        These are ``reply``, or those of another process that answered the same request first, if
        ``admit`` lets them out as in ``Ledger.reply``. Where nothing was charged, the reply holds
        nothing of a client's and is not stored.

        Args:
            request: hex digest of what the server sent, as in ``Charge``.
            reply: all that the node is about to send, as one or in pieces.
            admit: the owner's policy.
            keep_rounds: of the same run, only replies of the newest so many rounds are kept; what
                older ones answered stays answered.

        Raises:
            Refusal: ``request`` was answered, and its reply is no longer kept or not let out.
            ValueError: ``request`` is no digest, or ``keep_rounds`` is below 1.
        """
        require_digest("request", request)
        if keep_rounds < 1:
            raise ValueError(f"keep_rounds={keep_rounds}: must be at least 1")
        with self._log.writing() as transaction:
            earlier = answer_to(self._log, request)
            if earlier is not None:
                kept = self._admitted_reply(request, admit)
                if kept is None:
                    raise Refusal(reply_dropped(earlier.run, earlier.round), "already-answered")
                return kept
            charge = _charge_for(self._log, request)
            if charge is not None:
                transaction.answer(charge.run, charge.round, request, digest_of(reply))
                self._replies.put(charge, reply, keep_rounds)
        self._replies.drop_files()
        return reply

    def reply(self, request: str, admit: Admission | None = None) -> bytes | None:
        """The stored answer of an earlier identical request, byte for byte; None without one.

        ``admit`` is asked about each release that it holds, beside all else that its client has
        spent; Refusal where it refuses one. Nothing is charged again.
        """
        with self._log.reading():
            return self._admitted_reply(request, admit)

    def is_charged(self, request: str) -> bool:
        """True if something was charged for that very request, answered or not."""
        with self._log.reading():
            return _charge_for(self._log, request) is not None

    def run_header(self, run: str) -> SignedHeader | None:
        """The header under which ``run`` was charged first; None for a run without one."""
        with self._log.reading():
            return header_of(self._log, run)

    def confirm(self, confirmed: Sequence[Confirmed]) -> None:
        """Keep what clients are about to sign of secure sums; what is kept already is not again.

        Refusal for a run that was closed: its receipts say what was confirmed.
        """
        with self._log.writing() as transaction:
            for one in confirmed:
                if is_closed(self._log, one.run):
                    raise Refusal(closed_reason(one.run), CLOSED)
                text = one.to_text()
                where = "WHERE kind = 'confirmed' AND request = ? AND run = ? AND body = ?"
                if self._log.find(where, one.terms, one.run, text) is None:
                    transaction.confirm(one.run, one.round, one.purpose, one.terms, text)

    def close_run(self, run: str, body: str = "{}", header: SignedHeader | None = None) -> str:
        """Charge nothing more for ``run`` and give no stored reply of it; once and for all.

        Args:
            run: its name.
            body: what its receipts are to say, as JSON.
            header: of the run, verified, for one of which nothing was charged here.

        Returns:
            ``body``, or that with which it was closed before.
        """
        with self._log.writing() as transaction:
            earlier = closing_of(self._log, run)
            if earlier is not None:
                return earlier.body
            kept = header_of(self._log, run)
            if kept is None and header is not None:
                transaction.begin_run(run, header.digest, header.to_text())
                kept = header
            transaction.close_run(run, _NO_HEADER if kept is None else kept.digest, body)
            return body

    def closing(self, run: str) -> str | None:
        """The body of the entry that closed ``run``; None while it is open."""
        with self._log.reading():
            entry = closing_of(self._log, run)
        return None if entry is None else entry.body

    def closed_runs(self) -> list[tuple[str, int, str]]:
        """Name, position and body of each entry that closed a run, in their order."""
        with self._log.reading():
            rows = self._log.rows("WHERE kind = 'closed' ORDER BY position")
            entries = [self._log.authentic(row) for row in rows]
        return [(entry.run, entry.position, entry.body) for entry in entries]

    def runs_under(self, digest: str) -> list[str]:
        """Names of the runs that were charged first under the header with this digest."""
        with self._log.reading():
            rows = self._log.rows("WHERE kind = 'run' AND request = ? ORDER BY position", digest)
            return [self._log.authentic(row).run for row in rows]

    def sign_envelope(
        self, predicate_type: str, subjects: Mapping[str, str], predicate: Mapping[str, Any]
    ) -> Envelope:
        """An in-toto Statement, signed by the device's key (``Envelope.of``)."""
        return Envelope.of(predicate_type, subjects, predicate, self._log.signer)

    def spent(self, client: int | str) -> ComposedEvent:
        """All that ``client`` has released in its life, equal releases counted together.

        Also what was charged and never answered: whether it has left is not known.
        """
        with self._log.reading():
            return composed(self._log.history.spends.get(str(client), NOTHING))

    def events(self, client: int | str) -> list[Event]:
        """Every release of ``client``; equal ones stand together, not in their order in time."""
        with self._log.reading():
            tally = sorted(self._log.history.spends.get(str(client), NOTHING))
        return [event_from_text(text) for text, count in tally for _ in range(count)]

    def kinds(self) -> set[Event]:
        """Events that were ever charged to anybody, each once."""
        with self._log.reading():
            tallies = set(self._log.history.spends.values())
        return {event_from_text(text) for tally in tallies for text, _ in tally}

    def releases(self) -> int:
        """How many releases were ever charged, of all clients together."""
        with self._log.reading():
            tallies = Counter(self._log.history.spends.values())
        return sum(n * count for tally, n in tallies.items() for _, count in tally)

    def clients(self) -> list[str]:
        """Every client that was ever charged; numbers first, in their order."""
        with self._log.reading():
            return sorted(self._log.history.spends, key=_natural)

    def entries(self, client: int | str | None = None, run: str | None = None) -> Iterator[Entry]:
        """Entries in order, each covered by a signature; of one client or run, if named.

        A client's are also those of the blocks that it is in (``Entry.clients``).

        Read in pages, so that a long ledger is never in memory as a whole and writers can come in
        between two pages.
        """
        where = "position > ?"
        values: list[int | str] = [0]
        if client is not None:
            where += f" AND (client = ? OR {IS_BLOCK})"
            values.append(str(client))
        if run is not None:
            where += " AND run = ?"
            values.append(run)
        while True:
            with self._log.reading():
                rows = self._log.rows(
                    f"WHERE {where} ORDER BY position LIMIT {_PAGE_ENTRIES}", *values
                )
                page = [self._log.authentic(entry) for entry in rows]
            for entry in page:
                if client is None or str(client) in entry.clients:
                    yield entry
            if len(page) < _PAGE_ENTRIES:
                return
            values[0] = page[-1].position

    def verify(self) -> None:
        """Read everything: each entry, its place in the chain, the anchor, the stored replies.

        Raises LedgerError that says which entry is wrong, and how.
        """
        with self._log.verified():
            for request in self._replies.requests():
                self._replies.get(request, answer_to(self._log, request))

    def close(self) -> None:
        """Let go of the files."""
        self._log.close()

    def _admitted_reply(self, request: str, admit: Admission | None) -> bytes | None:
        """The stored reply to ``request``, if there is one; see ``reply``.

        The policy of now is asked about each release in it, as if it were made now: what the owner
        has withdrawn since does not leave again.
        """
        log = self._log
        answer = answer_to(log, request)
        kept = self._replies.get(request, answer)
        if kept is None or answer is None:
            return None
        if is_closed(log, answer.run):
            raise Refusal(closed_reason(answer.run), CLOSED)
        where = "WHERE kind = 'charge' AND run = ? AND round = ? AND request = ?"
        for row in log.rows(where, answer.run, answer.round, request):
            entry = log.authentic(row)
            asked = set()
            for client in entry.clients:
                spent = log.history.spends[client]
                if spent not in asked:
                    about = (client, entry.run, entry.round, str(entry.purpose))
                    ask(admit, Charge(*about, request, entry.event), spent, entry.body)
                    asked.add(spent)
        return kept

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _charge_for(log: Log, request: str) -> Entry | None:
    """A charge for ``request``: in practice among the last entries, so found from the end."""
    where = "WHERE kind = 'charge' AND request = ? AND position > ?"
    return log.find(f"{where} ORDER BY position DESC LIMIT 1", request, log.base)


def _natural(name: str) -> tuple[bool, int, str]:
    """Sorts numbers before other names, and by their size."""
    if name.isdecimal():
        return False, len(name), name
    return True, 0, name
