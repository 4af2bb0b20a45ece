"""The ledger's rules: what may be charged, what is answered again, what is refused.

A client makes each release (run, round, purpose) once. The same request is charged once and, when
its reply was stored, answered with the same bytes; another request for the same release is
refused. What ``admit`` (the owner's policy) says is asked while other writers are kept out.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from murmur.privacy.envelope import Envelope
from murmur.privacy.events import ComposedEvent, Event, UnknownEvent
from murmur.privacy.ledger.asked import Asked, Confirmed
from murmur.privacy.ledger.blocks import MARK, NOTHING, EventCounts, add, encode_ids
from murmur.privacy.ledger.chain import Header, Transaction
from murmur.privacy.ledger.entry import (
    Charge,
    Entry,
    LedgerError,
    Outcome,
    Status,
    composed,
    event_from_text,
    event_text,
    require_digest,
)
from murmur.privacy.ledger.log import Log
from murmur.privacy.ledger.replies import Replies, Reply, digest_of
from murmur.privacy.policy import Refusal
from murmur.privacy.run_header import SignedHeader

_PAGE_ENTRIES = 1_000
_FEW = 16  # clients of one message
_IS_BLOCK = f"substr(client, 1, {len(MARK)}) = '{MARK}'"
_NO_OTHER = "no other ledger counts what this device has released"
_NEW_NAME = "a new run needs a name of its own"
_NO_HEADER = "0" * 64  # in place of a header's digest
_CLOSED = "run-closed"

_About = tuple[str, int, str]  # run, round and purpose: with a client, the name of a release

Admission = Callable[[Charge, ComposedEvent], None]
"""Called with a charge and all that its client has spent before; raises Refusal to refuse it."""


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
            batch = _Batch(self._log, self._replies, transaction, admit, asked, blocks, names)
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
            earlier = _answer_to(self._log, request)
            if earlier is not None:
                kept = self._admitted_reply(request, admit)
                if kept is None:
                    raise Refusal(_reply_dropped(earlier.run, earlier.round), "already-answered")
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
            return _header_of(self._log, run)

    def confirm(self, confirmed: Sequence[Confirmed]) -> None:
        """Keep what clients are about to sign of secure sums; what is kept already is not again.

        Refusal for a run that was closed: its receipts say what was confirmed.
        """
        with self._log.writing() as transaction:
            for one in confirmed:
                if _is_closed(self._log, one.run):
                    raise Refusal(_closed(one.run), _CLOSED)
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
            earlier = _closing_of(self._log, run)
            if earlier is not None:
                return earlier.body
            kept = _header_of(self._log, run)
            if kept is None and header is not None:
                transaction.begin_run(run, header.digest, header.to_text())
                kept = header
            transaction.close_run(run, _NO_HEADER if kept is None else kept.digest, body)
            return body

    def closing(self, run: str) -> str | None:
        """The body of the entry that closed ``run``; None while it is open."""
        with self._log.reading():
            entry = _closing_of(self._log, run)
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
            where += f" AND (client = ? OR {_IS_BLOCK})"
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
                self._replies.get(request, _answer_to(self._log, request))

    def close(self) -> None:
        """Let go of the files."""
        self._log.close()

    def _admitted_reply(self, request: str, admit: Admission | None) -> bytes | None:
        """The stored reply to ``request``, if there is one; see ``reply``.

        The policy of now is asked about each release in it, as if it were made now: what the owner
        has withdrawn since does not leave again.
        """
        log = self._log
        answer = _answer_to(log, request)
        kept = self._replies.get(request, answer)
        if kept is None or answer is None:
            return None
        if _is_closed(log, answer.run):
            raise Refusal(_closed(answer.run), _CLOSED)
        where = "WHERE kind = 'charge' AND run = ? AND round = ? AND request = ?"
        for row in log.rows(where, answer.run, answer.round, request):
            entry = log.authentic(row)
            asked = set()
            for client in entry.clients:
                spent = log.history.spends[client]
                if spent not in asked:
                    about = (client, entry.run, entry.round, str(entry.purpose))
                    _ask(admit, Charge(*about, request, entry.event), spent, entry.body)
                    asked.add(spent)
        return kept

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Batch:
    """The decisions of one ``Ledger.charge``, in one transaction.

    A charge is admitted after those before it: two of one client cannot both take its last bit.
    """

    def __init__(
        self,
        log: Log,
        replies: Replies,
        transaction: Transaction,
        admit: Admission | None,
        asked: Asked | None,
        blocks: bool,
        names: Collection[str],
    ) -> None:
        self._log = log
        self._replies = replies
        self._transaction = transaction
        self._admit = admit
        self._question = asked
        self._blocks = blocks
        self._names = names
        self._refusals: dict[str, Outcome | None] = {}  # of whole runs
        self._asked: set[tuple[_About, str]] = set()
        self._answers: dict[str, Entry | None] = {}
        self._earlier: dict[_About, dict[str, Entry]] = {}
        self._spent: dict[str, EventCounts] = {}  # of those charged in this batch
        self._decisions: dict[tuple[object, ...], Outcome] = {}
        self._new: dict[tuple[str, int, str, str, str], list[str]] = defaultdict(list)

    def decide(self, charge: Charge) -> Outcome:
        """Decide on ``charge``; a new one is in the transaction after ``append``."""
        client = charge.client_id
        about = (charge.run, charge.round, charge.purpose)
        if (about, client) in self._asked:
            return _refused(f"client {client} is asked twice in one message", "asked-twice")
        self._asked.add((about, client))
        if charge.run not in self._refusals:
            self._refusals[charge.run] = self._refusal_of(charge.run)
        refusal = self._refusals[charge.run]
        if refusal is not None:
            return refusal
        if charge.request not in self._answers:
            self._answers[charge.request] = _answer_to(self._log, charge.request)
        answer = self._answers[charge.request]
        if answer is not None:
            return self._answered(charge, answer)
        if about not in self._earlier:
            self._earlier[about] = self._charged_before(about)
        earlier = self._earlier[about].get(client)
        if earlier is not None:
            return self._repeated(charge, self._log.authentic(earlier))
        return self._charged(charge)

    def append(self) -> None:
        """Add what was newly charged to the transaction, after what it was charged for."""
        if self._question is not None:
            for run, number, purpose, request in {about[:4]: None for about in self._new}:
                self._append_question(self._question, run, number, purpose, request)
        for about, names in self._new.items():
            clients = names
            if self._blocks:
                clients = encode_ids(names)
            for client in clients:
                self._transaction.charge(client, *about)

    def _append_question(
        self, asked: Asked, run: str, number: int, purpose: str, request: str
    ) -> None:
        """Add the run's header and the question, where they are not kept already."""
        log = self._log
        if asked.header is not None and _header_of(log, run) is None:
            self._transaction.begin_run(run, asked.header.digest, asked.header.to_text())
        if log.find("WHERE kind = 'question' AND request = ?", request) is None:
            self._transaction.question(run, number, purpose, request, asked.to_text())

    def _refusal_of(self, run: str) -> Outcome | None:
        """Why nothing of ``run`` is charged: it was closed, or has another header."""
        if _is_closed(self._log, run):
            return _refused(_closed(run), _CLOSED)
        asked = self._question
        if asked is None or asked.header is None:
            return None
        digest = asked.header.digest
        where = "WHERE kind = 'closed' AND request = ? LIMIT 1"
        closed = self._log.find(where, digest)
        if closed is not None:
            return _refused(_closed(closed.run), _CLOSED)
        if not asked.is_binding:
            return None
        kept = _header_of(self._log, run)
        if kept is not None and kept.digest != digest:
            return _refused(f"run {run} has another header, and a run has one", "other-header")
        other = self._log.find(
            "WHERE kind = 'run' AND request = ? AND run != ? LIMIT 1", digest, run
        )
        if other is not None:
            return _refused(f"run {other.run} has this header, and a header one run", "other-run")
        return None

    def _charged_before(self, about: _About) -> dict[str, Entry]:
        """Who has an entry for that release; blocks, which name many, are verified at once.

        Where few are charged, those who are not among them are left out: a round that asks its
        clients one by one would read all of them for each.
        """
        found: dict[str, Entry] = {}
        where = "WHERE kind = 'charge' AND run = ? AND round = ? AND purpose = ?"
        names: list[str] = []
        if len(self._names) <= _FEW:
            names = sorted(self._names)
            where += f" AND (client IN ({', '.join('?' * len(names))}) OR {_IS_BLOCK})"
        for entry in self._log.rows(where, *about, *names):
            if len(entry.clients) > 1:
                self._log.authentic(entry)
            found.update(dict.fromkeys(entry.clients, entry))
        return found

    def _answered(self, charge: Charge, answer: Entry) -> Outcome:
        """The bytes of the earlier answer, if it was for this release and is kept."""
        if (answer.run, answer.round) != (charge.run, charge.round):
            return _refused(
                f"this request was answered as round {answer.round} of run {answer.run}",
                "other-request",
            )
        if not self._replies.has(charge.request):
            return _refused(_reply_dropped(charge.run, charge.round), "already-answered")
        return Outcome(Status.ANSWERED)

    def _repeated(self, charge: Charge, earlier: Entry) -> Outcome:
        """A release that was charged as ``earlier`` and never answered may be computed again.

        Only for the same request and the same event, so that nothing new is released for it.
        """
        about = f"round {charge.round} of run {charge.run} ({charge.purpose})"
        if earlier.request != charge.request:
            reason = f"{about} was already charged for another request; {_NEW_NAME}"
            return _refused(reason, "other-request")
        if earlier.position <= self._log.base:
            # That nothing has left is known only where every entry was verified.
            return _refused(f"{about} was charged too long ago to be answered now", "too-old")
        body = event_text(charge.event)
        if earlier.body != body:
            return _refused(
                f"{about} was charged as {earlier.body}, but would now release {body}",
                "other-release",
            )
        return self._admitted(charge, body, Outcome(Status.REPEATED))

    def _charged(self, charge: Charge) -> Outcome:
        """A new release: an entry, if the policy lets it out."""
        outcome = self._admitted(charge, None, Outcome(Status.CHARGED))
        if outcome.status is Status.CHARGED:
            client = charge.client_id
            body = event_text(charge.event)
            about = (charge.run, charge.round, charge.purpose, charge.request, body)
            self._new[about].append(client)
            self._spent[client] = _after(self._of(client), body)
        return outcome

    def _of(self, client: str) -> EventCounts:
        """Events that ``client`` has spent, with those charged earlier in the same batch."""
        return self._spent.get(client) or self._log.history.spends.get(client, NOTHING)

    def _admitted(self, charge: Charge, already: str | None, outcome: Outcome) -> Outcome:
        """``outcome`` unless admission refuses; ``already``: this charge's own earlier entry."""
        spent = self._of(charge.client_id)
        about = (charge.run, charge.round, charge.purpose, charge.request)
        alike = (about, charge.event, spent, already)
        if self._blocks and alike in self._decisions:
            return self._decisions[alike]
        try:
            _ask(self._admit, charge, spent, already)
        except Refusal as refusal:
            outcome = _refused(str(refusal), refusal.code)
        self._decisions[alike] = outcome
        return outcome


@lru_cache(maxsize=4096)
def _after(spent: EventCounts, body: str) -> EventCounts:
    """``spent``, and ``body`` charged once more."""
    return add(spent, {body: 1})


def _ask(admit: Admission | None, charge: Charge, spent: EventCounts, already: str | None) -> None:
    """Refusal unless ``admit`` lets ``charge`` out after what its client has ``spent``.

    ``already``: the charge's own entry, where ``spent`` holds it.
    """
    if any(isinstance(event_from_text(text), UnknownEvent) for text, _ in spent):
        raise Refusal(
            f"client {charge.client_id} has released what this version cannot account for, so "
            "nothing more is; a newer version of Murmur wrote that entry and can read it",
            "unsupported",
        )
    if already is not None:
        spent = add(spent, {already: -1})
    if admit is not None:
        admit(charge, composed(spent))


def _header_of(log: Log, run: str) -> SignedHeader | None:
    """The header of ``run``; LedgerError where the entry does not hold one."""
    entry = log.find("WHERE kind = 'run' AND run = ?", run)
    if entry is None:
        return None
    try:
        return SignedHeader.from_text(entry.body)
    except ValueError as error:
        raise LedgerError(f"{entry}: {error}") from error


def _closing_of(log: Log, run: str) -> Entry | None:
    """The entry that closed ``run``."""
    return log.find("WHERE kind = 'closed' AND run = ?", run)


def _is_closed(log: Log, run: str) -> bool:
    """True if ``run`` was closed."""
    return _closing_of(log, run) is not None


def _closed(run: str) -> str:
    return f"run {run} was closed: nothing more of it is released"


def _answer_to(log: Log, request: str) -> Entry | None:
    """The entry that says that ``request`` was answered."""
    return log.find("WHERE kind = 'answer' AND request = ?", request)


def _charge_for(log: Log, request: str) -> Entry | None:
    """A charge for ``request``: in practice among the last entries, so found from the end."""
    where = "WHERE kind = 'charge' AND request = ? AND position > ?"
    return log.find(f"{where} ORDER BY position DESC LIMIT 1", request, log.base)


def _reply_dropped(run: str, round: int) -> str:
    """The reason for refusing a request that was answered too long ago."""
    return (
        f"round {round} of run {run} was answered before and its reply is no longer kept; "
        f"{_NEW_NAME}"
    )


def _refused(reason: str, code: str) -> Outcome:
    return Outcome(Status.REFUSED, reason, code)


def _natural(name: str) -> tuple[bool, int, str]:
    """Sorts numbers before other names, and by their size."""
    if name.isdecimal():
        return False, len(name), name
    return True, 0, name
