"""The ledger's rules: what may be charged, what is answered again, what is refused."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable

from murmur.privacy.events import ComposedEvent, UnknownEvent
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
from murmur.privacy.ledger.history import Transaction
from murmur.privacy.ledger.log import Log
from murmur.privacy.policy import Refusal

_NAME = "a new run needs a name of its own"

Admission = Callable[[Charge, ComposedEvent], None]
"""Called with a charge and all that its client has spent before; raises Refusal to refuse it."""


class Batch:
    """The decisions of one ``Ledger.charge``, in one transaction."""

    def __init__(self, log: Log, transaction: Transaction, admit: Admission | None) -> None:
        self._log = log
        self._transaction = transaction
        self._admit = admit
        self._asked: set[tuple[str, int, str, str]] = set()
        self._answers: dict[str, Entry | None] = {}
        self._new: dict[str, Counter[str]] = {}  # charged in this batch, by client

    def decide(self, charge: Charge) -> Outcome:
        """What becomes of ``charge``; a new one is appended to the transaction."""
        client = charge.client_id
        key = (charge.run, charge.round, charge.purpose, client)
        if key in self._asked:
            return _refused(f"client {client} is asked twice in one message", "asked-twice")
        self._asked.add(key)
        if charge.request not in self._answers:
            self._answers[charge.request] = answer_to(self._log, charge.request)
        answer = self._answers[charge.request]
        if answer is not None:
            return self._answered(charge, answer)
        earlier = self._charged_before(key)
        if earlier is not None:
            return self._repeated(charge, earlier)
        return self._charged(charge)

    def _answered(self, charge: Charge, answer: Entry) -> Outcome:
        if (answer.run, answer.round) != (charge.run, charge.round):
            return _refused(
                f"this request was answered as round {answer.round} of run {answer.run}",
                "other-request",
            )
        kept = self._log.execute("SELECT 1 FROM replies WHERE request = ?", charge.request)
        if kept.fetchone() is None:
            return _refused(reply_dropped(charge.run, charge.round), "already-answered")
        return Outcome(Status.ANSWERED)

    def _repeated(self, charge: Charge, earlier: Entry) -> Outcome:
        about = f"round {charge.round} of run {charge.run} ({charge.purpose})"
        if earlier.request != charge.request:
            reason = f"{about} was already charged for another request; {_NAME}"
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
        outcome = self._admitted(charge, None, Outcome(Status.CHARGED))
        if outcome.status is Status.CHARGED:
            client, body = charge.client_id, event_text(charge.event)
            self._transaction.charge(
                client, charge.run, charge.round, charge.purpose, charge.request, body
            )
            self._new.setdefault(client, Counter())[body] += 1
        return outcome

    def _admitted(self, charge: Charge, already: str | None, outcome: Outcome) -> Outcome:
        """``outcome`` unless admission refuses; ``already``: this charge's own earlier entry."""
        spent = self._log.history.spends.get(charge.client_id, Counter())
        if charge.client_id in self._new:
            spent = spent + self._new[charge.client_id]
        try:
            _ask(self._admit, charge, spent, already)
        except Refusal as refusal:
            return _refused(str(refusal), refusal.code)
        return outcome

    def _charged_before(self, key: tuple[str, int, str, str]) -> Entry | None:
        entry = next(
            self._log.rows(
                "WHERE kind = 'charge' AND run = ? AND round = ? AND purpose = ? AND client = ?",
                *key,
            ),
            None,
        )
        return None if entry is None else self._log.authentic(entry)


def _ask(admit: Admission | None, charge: Charge, spent: Counter[str], already: str | None) -> None:
    """Refusal unless ``admit`` lets ``charge`` out after what its client has ``spent``.

    ``already``: the charge's own entry, where ``spent`` holds it.
    """
    if any(isinstance(event_from_text(text), UnknownEvent) for text in spent):
        raise Refusal(
            f"client {charge.client_id} has released what this version cannot account for, so "
            "nothing more is; a newer version of Murmur wrote that entry and can read it",
            "unsupported",
        )
    if already is not None:
        spent = spent - Counter({already: 1})
    if admit is not None:
        admit(charge, composed(spent))


def answer(
    log: Log,
    transaction: Transaction,
    request: str,
    reply: bytes,
    keep_rounds: int,
    admit: Admission | None,
) -> bytes:
    """What may leave as the answer to ``request``; see ``Ledger.store_reply``."""
    earlier = answer_to(log, request)
    if earlier is not None:
        kept = admitted_reply(log, request, admit)
        if kept is None:
            raise Refusal(reply_dropped(earlier.run, earlier.round), "already-answered")
        return kept
    charge = _charge_for(log, request)
    if charge is None:
        return reply
    transaction.answer(charge.run, charge.round, request, hashlib.sha256(reply).hexdigest())
    log.execute(
        "DELETE FROM replies WHERE run = ? AND round <= ?", charge.run, charge.round - keep_rounds
    )
    log.execute(
        "INSERT INTO replies (request, run, round, reply) VALUES (?, ?, ?, ?)",
        request,
        charge.run,
        charge.round,
        reply,
    )
    return reply


def _charge_for(log: Log, request: str) -> Entry | None:
    """A charge for ``request``: in practice among the last entries, so found from the end."""
    where = "WHERE kind = 'charge' AND request = ? AND position > ?"
    entry = next(log.rows(f"{where} ORDER BY position DESC LIMIT 1", request, log.base), None)
    return None if entry is None else log.authentic(entry)


def answer_to(log: Log, request: str) -> Entry | None:
    """The entry that says that ``request`` was answered."""
    entry = next(log.rows("WHERE kind = 'answer' AND request = ?", request), None)
    return None if entry is None else log.authentic(entry)


def admitted_reply(log: Log, request: str, admit: Admission | None) -> bytes | None:
    """The stored reply to ``request``, if there is one; see ``Ledger.reply``."""
    kept, answer = kept_reply(log, request), answer_to(log, request)
    if kept is None or answer is None:
        return None
    where = "WHERE kind = 'charge' AND run = ? AND round = ? AND request = ?"
    for row in log.rows(where, answer.run, answer.round, request):
        entry = log.authentic(row)
        spent = log.history.spends[str(entry.client)]
        about = str(entry.client), entry.run, entry.round, str(entry.purpose)
        _ask(admit, Charge(*about, request, entry.event), spent, entry.body)
    return kept


def kept_reply(log: Log, request: str) -> bytes | None:
    """The stored reply to ``request``, if there is one; LedgerError if it is not the one given."""
    row = log.execute("SELECT reply FROM replies WHERE request = ?", request).fetchone()
    if row is None:
        return None
    answer = answer_to(log, request)
    if answer is None or hashlib.sha256(row[0]).hexdigest() != answer.body:
        raise LedgerError(f"the stored reply to request {request} is not the one that was given")
    return row[0]


def reply_dropped(run: str, round: int) -> str:
    """The reason for refusing a request that was answered too long ago."""
    return (
        f"round {round} of run {run} was answered before and its reply is no longer kept; {_NAME}"
    )


def _refused(reason: str, code: str) -> Outcome:
    return Outcome(Status.REFUSED, reason, code)
