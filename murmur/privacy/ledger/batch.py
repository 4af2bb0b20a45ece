"""The decisions on the charges of one message: charged, answered before, or refused, and why.

``Ledger`` has the transaction; here is what is decided in it, one charge after the other.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from functools import lru_cache

from murmur.privacy.events import ComposedEvent, UnknownEvent
from murmur.privacy.ledger.asked import Asked
from murmur.privacy.ledger.blocks import MARK, NOTHING, EventCounts, add, encode_ids
from murmur.privacy.ledger.chain import Transaction
from murmur.privacy.ledger.entry import (
    Charge,
    Entry,
    LedgerError,
    Outcome,
    Status,
    composed,
    event_from_text,
    event_text,
)
from murmur.privacy.ledger.log import Log
from murmur.privacy.ledger.replies import Replies
from murmur.privacy.policy import Refusal
from murmur.privacy.run_header import SignedHeader

IS_BLOCK = f"substr(client, 1, {len(MARK)}) = '{MARK}'"
CLOSED = "run-closed"
_FEW = 16  # clients of one message
_NEW_NAME = "a new run needs a name of its own"

_About = tuple[str, int, str]  # run, round and purpose: with a client, the name of a release

Admission = Callable[[Charge, ComposedEvent], None]
"""Called with a charge and all that its client has spent before; raises Refusal to refuse it."""


class Batch:
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
            self._answers[charge.request] = answer_to(self._log, charge.request)
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
        if asked.header is not None and header_of(log, run) is None:
            self._transaction.begin_run(run, asked.header.digest, asked.header.to_text())
        if log.find("WHERE kind = 'question' AND request = ?", request) is None:
            self._transaction.question(run, number, purpose, request, asked.to_text())

    def _refusal_of(self, run: str) -> Outcome | None:
        """Why nothing of ``run`` is charged: it was closed, or has another header."""
        if is_closed(self._log, run):
            return _refused(closed_reason(run), CLOSED)
        asked = self._question
        if asked is None or asked.header is None:
            return None
        digest = asked.header.digest
        where = "WHERE kind = 'closed' AND request = ? LIMIT 1"
        closed = self._log.find(where, digest)
        if closed is not None:
            return _refused(closed_reason(closed.run), CLOSED)
        if not asked.is_binding:
            return None
        kept = header_of(self._log, run)
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
            where += f" AND (client IN ({', '.join('?' * len(names))}) OR {IS_BLOCK})"
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
            return _refused(reply_dropped(charge.run, charge.round), "already-answered")
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
            ask(self._admit, charge, spent, already)
        except Refusal as refusal:
            outcome = _refused(str(refusal), refusal.code)
        self._decisions[alike] = outcome
        return outcome


@lru_cache(maxsize=4096)
def _after(spent: EventCounts, body: str) -> EventCounts:
    """``spent``, and ``body`` charged once more."""
    return add(spent, {body: 1})


def ask(admit: Admission | None, charge: Charge, spent: EventCounts, already: str | None) -> None:
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


def header_of(log: Log, run: str) -> SignedHeader | None:
    """The header of ``run``; LedgerError where the entry does not hold one."""
    entry = log.find("WHERE kind = 'run' AND run = ?", run)
    if entry is None:
        return None
    try:
        return SignedHeader.from_text(entry.body)
    except ValueError as error:
        raise LedgerError(f"{entry}: {error}") from error


def closing_of(log: Log, run: str) -> Entry | None:
    """The entry that closed ``run``."""
    return log.find("WHERE kind = 'closed' AND run = ?", run)


def is_closed(log: Log, run: str) -> bool:
    """True if ``run`` was closed."""
    return closing_of(log, run) is not None


def closed_reason(run: str) -> str:
    """Why a closed run is refused."""
    return f"run {run} was closed: nothing more of it is released"


def answer_to(log: Log, request: str) -> Entry | None:
    """The entry that says that ``request`` was answered."""
    return log.find("WHERE kind = 'answer' AND request = ?", request)


def reply_dropped(run: str, round: int) -> str:
    """The reason for refusing a request that was answered too long ago."""
    return (
        f"round {round} of run {run} was answered before and its reply is no longer kept; "
        f"{_NEW_NAME}"
    )


def _refused(reason: str, code: str) -> Outcome:
    return Outcome(Status.REFUSED, reason, code)
