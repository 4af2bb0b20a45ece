"""A signed statement beside a device's own ledger: what its owner can check alone.

Nobody's receipt is needed, and no server can prevent it. Each charge of the run is compared with
the question that the statement opens for it, each confirmed secure sum with the sum that it opens,
and the ε that follows from the charges with the one that is stated. Fewer charges than stated are
no contradiction: nobody need have answered.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from murmur.files import replace_file
from murmur.format import format_number, framed, pluralize, printable
from murmur.privacy.accounting import Threat, UnsupportedEventError, epsilon
from murmur.privacy.envelope import Envelope
from murmur.privacy.events import ComposedEvent, Event, RepeatedEvent, SummedEvent
from murmur.privacy.guarantee import Guarantee
from murmur.privacy.ledger import Entry, JoinedSum, Ledger, LedgerError
from murmur.privacy.run_header import SignedHeader, require_signed_question
from murmur.privacy.statement import Statement
from murmur.round.signed import question_text
from murmur.round.statement_file import OpenedSum, SignedStatement, read_statement
from murmur.secure_sum.terms import SecureSumError, SumTerms, part_ids

LEDGER = "ledger.sqlite"
MAX_SENTENCES = 10
_ROUNDING = 1e-4  # of arithmetic, relative to ε
_SHOWN = "the server asked, and its signature is in entry {} of the ledger"
_SAID = "this device says so, and cannot show it: the server has signed nothing"
_NOT_SHOWN = (
    "not shown: what other devices were asked, what the server has drawn (its own noise, secret "
    "samples), what it measured, and how it came to the model"
)


def compare(
    envelope: Envelope, state: Path, client: str | None, evidence: Path | None = None
) -> int:
    """Compare a statement with the entries of the ledger in ``state``, and say what was found.

    Args:
        envelope: of the statement; nothing of it is verified yet.
        state: the device's folder.
        client: whose entries; None: of all clients that live here.
        evidence: where to write the server's signatures of what was charged; None: nowhere.

    Returns:
        0 where no entry contradicts the statement, 1 where one does.

    Raises:
        ValueError: the statement is none, this device was never asked in its run, or there is no
            signature to write.
        LedgerError: the ledger cannot be read or trusted.
    """
    with Ledger(state / LEDGER, create=False) as ledger:
        ledger.verify()
        run, statement = _run_of(envelope, ledger)
        asked = _Asked.read(ledger, run, statement.header, client)
    if not asked.charges:
        raise ValueError(f"run {run}: nothing was charged to client {client or 'of this device'}")
    if evidence is not None:
        _write_evidence(evidence, run, statement.header, asked)
    mine = _Comparison(statement, asked)
    found = [*mine.of_the_header(), *mine.of_charges(), *mine.of_sums()]
    if not found:  # else what follows has its cause there
        found = list(mine.of_epsilon())
    for sentence in found[:MAX_SENTENCES]:
        print(printable(f"contradicted: {sentence}"))
    if found:
        if len(found) > MAX_SENTENCES:
            print(f"and {pluralize(len(found) - MAX_SENTENCES, 'other contradiction')}")
        return 1
    print(printable(f"run {run}: {mine.summary()}"))
    print(_NOT_SHOWN)
    return 0


@dataclass(frozen=True)
class _Question:
    """A question as the ledger has it.

    Attributes:
        position: of its entry.
        digest: in hex.
        header: digest of the header that it came under, in hex; "": it came without one.
        signatures: the server's, each after the sum's terms that it is for, in hex; none where one
            of them is missing, or does not hold.
        sums: secure sums that clients of this place have joined for it.
    """

    position: int
    digest: str
    header: str
    signatures: Sequence[tuple[str, str]]
    sums: Sequence[JoinedSum]

    @property
    def is_shown(self) -> bool:
        """True if others can be shown that the server has asked it."""
        return bool(self.signatures)

    @classmethod
    def read(cls, entry: Entry, header: SignedHeader) -> "_Question":
        """From its entry; LedgerError where that holds none."""
        try:
            plain = json.loads(entry.body)
            sums = [JoinedSum.from_plain(each) for each in plain.get("sums", [])]
            digest = plain["question"]
            signatures = _signatures(entry, plain, header)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise LedgerError(f"{entry}: holds no question: {error}") from error
        return cls(entry.position, digest, plain.get("header") or "", signatures, sums)


@dataclass
class _Asked:
    """Questions and charges of the run on this device.

    Attributes:
        charges: with the clients that are looked at.
        questions: by request.
        confirmed: entries of secure sums that clients of this device have confirmed.
    """

    charges: list[tuple[Entry, Sequence[str]]] = field(default_factory=list)
    questions: dict[str, _Question] = field(default_factory=dict)
    confirmed: list[Entry] = field(default_factory=list)

    @classmethod
    def read(cls, ledger: Ledger, run: str, header: SignedHeader, client: str | None) -> "_Asked":
        """All of ``run``, and of one client if it is named."""
        found = cls()
        for entry in ledger.entries(run=run):
            if entry.kind == "question":
                found.questions[entry.request] = _Question.read(entry, header)
            elif entry.kind == "confirmed":
                found.confirmed.append(entry)
            elif entry.kind == "charge":
                clients = [each for each in entry.clients if client in (None, each)]
                if clients:
                    found.charges.append((entry, clients))
        return found

    def evidence(self, entry: Entry) -> str:
        """Says if others can be shown what the entry says."""
        question = self.questions.get(entry.request)
        if question is not None and question.is_shown:
            return _SHOWN.format(question.position)
        return _SAID


class _Comparison:
    """A statement beside what this device was asked."""

    def __init__(self, statement: SignedStatement, asked: _Asked) -> None:
        self.header = statement.header.header
        self.privacy = statement.privacy
        self.asked = asked
        self.questions: dict[tuple[int, str], set[str]] = defaultdict(set)
        for one in statement.questions:
            self.questions[one.round, one.purpose].add(one.question)
        self.sums = {one.terms: one for one in statement.sums}
        self.survivors = {one.terms: _survivors(one) for one in statement.sums}

    def of_the_header(self) -> Iterator[str]:
        """Contradictions of the statement to the header that the server has signed before."""
        for name in ("unit", "adjacency", "delta"):
            here, there = getattr(self.privacy, name), getattr(self.header, name)
            if here != there:
                yield (
                    f"it states {name}={here}, and the run header that its server has signed says "
                    f"{there}; both are in the statement itself"
                )

    def of_charges(self) -> Iterator[str]:
        """Charges for what the statement does not have, or has otherwise."""
        for entry, _ in self.asked.charges:
            question = self.asked.questions.get(entry.request)
            stated = self.questions.get((entry.round, str(entry.purpose)))
            if stated is None:
                found = f"it has no question {entry.purpose} in round {entry.round}"
            elif question is not None and question.digest not in stated:
                found = f"it has another question {entry.purpose} in round {entry.round}"
            else:
                found = self._another_event(entry)
            if found:
                yield f"{entry} was charged, and {found}; {self.asked.evidence(entry)}"

    def of_sums(self) -> Iterator[str]:
        """Secure sums that clients have confirmed, and that are not stated so."""
        for entry in self.asked.confirmed:
            found = self._another_sum(entry)
            if found:
                yield f"{entry} was confirmed, and {found}; {self._evidence_of(entry)}"

    def of_epsilon(self) -> Iterator[str]:
        """ε of the charges that are above the stated ones."""
        for guarantee in self.privacy.guarantees:
            if not self._is_comparable(guarantee):
                continue
            most = guarantee.stated * (1 + _ROUNDING)
            for clients, event in self._spent():
                own = _epsilon(event, guarantee, self.privacy)
                if own is not None and own > most:
                    yield (
                        f"client {clients[0]} was charged ε = {format_number(own)} against "
                        f"{guarantee.adversary}, and it states {format_number(guarantee.stated)}; "
                        f"{self.asked.evidence(self.asked.charges[-1][0])}"
                    )

    def summary(self) -> str:
        """A sentence on how much was compared."""
        charges = self.asked.charges
        clients = [client for _, names in charges for client in names]
        rounds = {entry.round for entry, _ in charges}
        text = (
            "this statement does not contradict what this device was asked: "
            f"{pluralize(len(clients), 'charge')} of {pluralize(len(set(clients)), 'client')} in "
            f"{pluralize(len(rounds), 'round')}"
        )
        if self.asked.confirmed:
            text += f", {pluralize(len(self.asked.confirmed), 'confirmed secure sum')}"
        unknown = sum(entry.request not in self.asked.questions for entry, _ in charges)
        if unknown:
            text += f"; of {pluralize(unknown, 'charge')} the ledger does not keep the question"
        for guarantee in self.privacy.guarantees:
            if not self._is_comparable(guarantee):
                text += f"; ε against {guarantee.adversary} is the server's word"
        return text

    def _is_comparable(self, guarantee: Guarantee) -> bool:
        """True if ε against that adversary follows from charges: it sees what left the device."""
        if guarantee.threat == Threat.SECURE_AGGREGATION:
            return all(isinstance(entry.event, SummedEvent) for entry, _ in self.asked.charges)
        return guarantee.threat == Threat.LOCAL

    def _another_event(self, entry: Entry) -> str:
        """Says how the entry's event is not planned; "": it is."""
        event = entry.event
        if isinstance(event, SummedEvent):
            event = event.event
        try:
            self.header.require_planned(str(entry.purpose), entry.round, event)
        except ValueError as error:
            return str(error)
        return ""

    def _another_sum(self, entry: Entry) -> str:
        """Says how the statement has the confirmed sum otherwise; "": it has the same."""
        stated = self.sums.get(entry.request)
        if stated is None:
            return f"it has no secure sum with the terms {entry.request[:16]}"
        try:
            terms = SumTerms.from_dict(dict(stated.opened))
            survivors = len(part_ids(bytes.fromhex(stated.survivors), terms.clients))
        except (ValueError, SecureSumError) as error:
            return f"its sum with these terms is none: {error}"
        if terms.terms_digest.hex() != entry.request:
            return "the terms that it opens have another digest"
        if (terms.round, terms.purpose) != (entry.round, entry.purpose):
            return "the terms that it opens are of another round"
        confirmed = json.loads(entry.body)
        lists = framed(bytes.fromhex(stated.included), bytes.fromhex(stated.survivors))
        if hashlib.sha256(lists).hexdigest() != confirmed["lists"]:
            return (
                f"it has other lists of this sum's clients ({survivors} survivors; "
                f"{confirmed['survivors']} were confirmed)"
            )
        return ""

    def _evidence_of(self, confirmed: Entry) -> str:
        """Says if a confirmed sum can be shown: by a signed question for these terms."""
        for question in self.asked.questions.values():
            is_for_it = any(joined.terms == confirmed.request for joined in question.sums)
            if is_for_it and question.is_shown:
                return _SHOWN.format(question.position)
        return _SAID

    def _joined(self, entry: Entry, client: str) -> JoinedSum | None:
        """The sum that ``client`` has joined for the charge ``entry``."""
        question = self.asked.questions.get(entry.request)
        if question is None:
            return None
        return next((joined for joined in question.sums if client in joined.places), None)

    def _spent(self) -> Iterator[tuple[list[str], Event]]:
        """All charges of each client as one event; clients with the same stand together.

        Of a release in a sum with its honest clients: those that are known from its confirmed
        lists, where they are more than the fewest that were charged for.
        """
        tallies: dict[str, Counter[Event]] = defaultdict(Counter)
        for entry, clients in self.asked.charges:
            event = entry.event
            for client in clients:
                tallies[client][self._in_its_sum(event, entry, client)] += 1
        alike: dict[frozenset[tuple[Event, int]], list[str]] = defaultdict(list)
        for client, tally in tallies.items():
            alike[frozenset(tally.items())].append(client)
        for counts, names in alike.items():
            yield names, ComposedEvent(tuple(RepeatedEvent(*each) for each in counts))

    def _in_its_sum(self, event: Event, entry: Entry, client: str) -> Event:
        """``event`` of the charge ``entry``, hidden by all honest survivors of its sum."""
        joined = self._joined(entry, client)
        if not isinstance(event, SummedEvent) or joined is None or joined.terms not in self.sums:
            return event
        honest = len(self.survivors[joined.terms]) - joined.colluders
        return replace(event, honest_clients=max(event.honest_clients, honest))


def _signatures(
    entry: Entry, plain: Mapping[str, Any], header: SignedHeader
) -> list[tuple[str, str]]:
    """Terms and signature of the question in ``entry``, by the server of ``header``.

    None where one does not hold. ``plain``: the entry's body.
    """
    question = bytes.fromhex(plain["question"])
    found = list(zip(plain["terms"], plain["signatures"], strict=True))
    for terms, signature in found:
        about = plain["header"], entry.round, str(entry.purpose), question, bytes.fromhex(terms)
        try:
            require_signed_question(header, question_text(*about), bytes.fromhex(signature))
        except ValueError:
            return []
    return found


def _write_evidence(path: Path, run: str, header: SignedHeader, asked: _Asked) -> None:
    """Write the server's signatures of charged questions, for ``deploy/verify_statement.py``.

    They are alike for all who were asked, so the file tells in which rounds the device was charged
    and nothing else of it. ValueError where there is none, and where cohorts are secret, since it
    would tell when this device was drawn.
    """
    if header.header.secret:
        raise ValueError(
            f"run {run}: its cohorts are secret, and signatures would tell in which rounds this "
            "device was drawn; nothing was written"
        )
    lines = set()
    for entry, _ in asked.charges:
        question = asked.questions.get(entry.request)
        if question is not None and question.header == header.digest:
            about = header.digest, entry.round, str(entry.purpose), question.digest
            lines |= {(*about, *signed) for signed in question.signatures}
    if not lines:
        raise ValueError(
            f"run {run}: of no question that was charged here is the server's signature kept; "
            "nothing was written"
        )
    replace_file(path, json.dumps(sorted(lines)).encode())
    print(printable(f"{path}: {pluralize(len(lines), 'signature')} of the server"))


def _survivors(one: OpenedSum) -> frozenset[int]:
    """Clients whose vectors are in a stated sum; none where it is malformed."""
    try:
        clients = one.opened["clients"]
        return frozenset(part_ids(bytes.fromhex(one.survivors), clients))
    except (KeyError, TypeError, ValueError, SecureSumError):
        return frozenset()


def _epsilon(event: Event, guarantee: Guarantee, privacy: Statement) -> float | None:
    """ε of ``event`` for whom and what ``guarantee`` is stated; None where it has none."""
    delta, adjacency, unit = privacy.delta, privacy.adjacency, privacy.unit
    try:
        if guarantee.assumed_total is None:
            return epsilon(event, delta, Threat.LOCAL, adjacency, unit=unit).epsilon
        threat = Threat(guarantee.threat)
        return epsilon(event, delta, threat, adjacency, unit=unit, assumptions=None).epsilon
    except UnsupportedEventError:
        return None


def _run_of(envelope: Envelope, ledger: Ledger) -> tuple[str, SignedStatement]:
    """The run of the statement in the ledger, and what it says.

    ValueError where the device was never asked in that run.
    """
    headers: dict[str, SignedHeader] = {}
    digests: dict[str, str] = {}  # run by header: also of one that the run had later
    for entry in ledger.entries():
        if entry.kind == "run":
            headers[entry.run] = SignedHeader.from_text(entry.body)
            digests[entry.request] = entry.run
        elif entry.kind == "question":
            digests.setdefault(str(json.loads(entry.body).get("header")), entry.run)
    for key in {signed.header.server for signed in headers.values()}:
        if envelope.is_signed_by(key):
            statement = read_statement(envelope, key)
            digest = statement.header.digest
            if digest in digests:
                return digests[digest], statement
            known = [run for run, signed in headers.items() if signed.header.server == key]
            raise ValueError(
                f"this device was never asked in the run with header {digest} "
                f"({statement.header.header.name}); of its server it knows {', '.join(known)}"
            )
    raise ValueError("no server that has asked this device has signed it")
