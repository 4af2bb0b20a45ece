"""Receipts: what a device says that it was charged in one run, for somebody else to check.

A receipt holds the run header's digest and, for each charge of the run, round, purpose, event and
one digest of what was asked, of the secure sum's terms and of the lists that were confirmed. It is
made from the ledger alone (``receipt_of``) and signed by the ledger's key, in an ``Envelope``.

It is published, so it tells nothing that is not the same for any two data sets that fit the owner's
words: no seal, no position, no time, no digest of a release, no ε of a life. Where the header says
that cohorts are secret, it follows from the header alone.

Who sets what, and the worst of it: the server sets what it asks, and so rounds, purposes, terms and
the digest of the statement. A device that is not honest sets everything; what others can check is
whether its word fits the statement and theirs.
"""

import base64
import binascii
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from murmur.format import framed
from murmur.privacy.envelope import Envelope
from murmur.privacy.events import (
    Adjacency,
    Event,
    Unit,
    event_from_dict,
    releases,
)
from murmur.privacy.ledger import Entry, JoinedSum, Ledger
from murmur.privacy.ledger.blocks import from_ranges, to_ranges
from murmur.privacy.ledger.entry import event_from_text, event_text
from murmur.privacy.neighbours import Neighbours, common
from murmur.privacy.run_header import RunHeader, SignedHeader
from murmur.privacy.strict_json import MAX_BYTES

RECEIPT_TYPE = "urn:murmur:receipt:1"
FORMAT = 1
MAX_PLANNED = 10_000  # phases of a run whose cohorts are secret
MAX_CLIENTS = 1_000_000  # in one receipt of a simulation
PEERS = ("seen", "any")
_DIGEST_BYTES = 32
_FIELDS = {
    *("format", "header", "client", "number", "previous", "statement", "unit", "adjacency"),
    *("peers", "events", "purposes", "entries", "beside"),
}


@dataclass(frozen=True)
class Masked:
    """A release in a secure sum, as a receipt has it.

    Attributes:
        survivors: how many clients were confirmed; 0 where none were.
        minimum, colluders: of the sum's terms.
        place: the client's among the sum's clients; None in the receipt of a simulation.
    """

    survivors: int
    minimum: int
    colluders: int
    place: int | None = None


@dataclass(frozen=True)
class ReceiptEntry:
    """One charged release.

    Attributes:
        round, purpose: of the charge.
        event: as charged.
        digest: SHA-256 of the question, the sum's terms and the confirmed lists (``asked_digest``).
        masked: None where the release was in no secure sum.
        clients: whose it is, where a simulation has one receipt for all.
    """

    round: int
    purpose: str
    event: Event
    digest: bytes
    masked: Masked | None = None
    clients: str | None = None


@dataclass(frozen=True)
class Beside:
    """Another run under the same server's key, which has charged the client meanwhile.

    Attributes:
        header: digest of its header, in hex.
        is_closed: whether it was closed.
        counts: how often each event was charged.
    """

    header: str
    is_closed: bool
    counts: tuple[tuple[Event, int], ...]


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """One client's charges in one run.

    Attributes:
        header: digest of the run's header, in hex.
        client: its name in the roster; of a simulation all of them ("0-39").
        number: 1 for its first receipt for this server's key, and one more for each that follows.
        previous: SHA-256 of the payload of the receipt before, in hex; None for the first.
        statement: SHA-256 of the payload of the signed statement that it was asked with, in hex.
        unit, adjacency: of the events in ``entries``.
        peers: by which rule the client knew others in secure sums: "seen", "any" or the digest of
            the pinned list; None where it was in none.
        entries: in the order of rounds and purposes.
        beside: other runs since ``previous``.
    """

    header: str
    client: str
    number: int = 1
    previous: str | None = None
    statement: str | None = None
    unit: Unit
    adjacency: Adjacency
    peers: str | None = None
    entries: tuple[ReceiptEntry, ...] = ()
    beside: tuple[Beside, ...] = ()

    def to_predicate(self) -> dict[str, Any]:
        """The payload's predicate, JSON-safe: events and purposes once each, entries by places."""
        events: dict[str, int] = {}
        purposes: dict[str, int] = {}

        def place_of(event: Event) -> int:
            return events.setdefault(event_text(event), len(events))

        entries = []
        for entry in self.entries:
            purpose = purposes.setdefault(entry.purpose, len(purposes))
            plain: list[Any] = [entry.round, purpose, place_of(entry.event), _word(entry.digest)]
            masked = entry.masked
            if entry.clients is not None:
                plain.append(entry.clients)
            elif masked is not None:
                plain.append(masked.place)
            if masked is not None:
                plain += [masked.survivors, masked.minimum, masked.colluders]
            entries.append(plain)
        beside = [
            {
                "header": other.header,
                "closed": other.is_closed,
                "entries": [[place_of(event), count] for event, count in other.counts],
            }
            for other in self.beside
        ]
        return {
            "format": FORMAT,
            **{name: getattr(self, name) for name in ("header", "client", "number", "previous")},
            "statement": self.statement,
            "unit": str(self.unit),
            "adjacency": str(self.adjacency),
            "peers": self.peers,
            "events": list(map(json.loads, events)),
            "purposes": list(purposes),
            "entries": entries,
            "beside": beside,
        }

    @property
    def events(self) -> list[tuple[int, str, Event]]:
        """Round, purpose and event of each entry."""
        return [(entry.round, entry.purpose, entry.event) for entry in self.entries]

    @property
    def subjects(self) -> dict[str, str]:
        """Digests of what it is about, by name."""
        found = {"header": self.header}
        if self.statement is not None:
            found["statement"] = self.statement
        return found

    @classmethod
    def read(cls, content: bytes, key: str | None, limit: int = MAX_BYTES) -> "Receipt":
        """The receipt in an envelope's bytes, signed by the ledger's public ``key``.

        ValueError for a signature that is missing or wrong, and for whatever is no receipt. None
        reads a draft.
        """
        subjects, predicate = Envelope.read(content, 2 * limit).predicate(RECEIPT_TYPE, key, limit)
        found = cls.from_predicate(predicate)
        if subjects != found.subjects:
            raise ValueError("subject: is not what the receipt is about")
        return found

    @classmethod
    def from_predicate(cls, plain: Mapping[str, Any]) -> "Receipt":
        """The inverse of ``to_predicate``; ValueError for anything else."""
        if plain.keys() != _FIELDS or plain["format"] != FORMAT:
            raise ValueError(f"a receipt of format {FORMAT} has {', '.join(sorted(_FIELDS))}")
        try:
            events = [event_from_dict(event) for event in _list(plain["events"])]
            purposes = [_text("purposes", word) for word in _list(plain["purposes"])]
            entries = [_entry(entry, purposes, events) for entry in _list(plain["entries"])]
            beside = [_beside(other, events) for other in _list(plain["beside"])]
            found = cls(
                header=_hex("header", plain["header"]),
                client=_text("client", plain["client"]),
                number=_whole("number", plain["number"], 1),
                previous=_hex_or_none("previous", plain["previous"]),
                statement=_hex_or_none("statement", plain["statement"]),
                unit=Unit(plain["unit"]),
                adjacency=Adjacency(plain["adjacency"]),
                peers=_peers(plain["peers"]),
                entries=tuple(entries),
                beside=tuple(beside),
            )
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"no receipt ({error})") from error
        if found.to_predicate() != plain:
            raise ValueError("a receipt has each event and purpose once, and what is used")
        abouts = [(entry.round, entry.purpose, entry.clients) for entry in found.entries]
        if len(set(abouts)) < len(abouts) or [a[:2] for a in abouts] != sorted(
            a[:2] for a in abouts
        ):
            raise ValueError("entries: each round and purpose once, and in order")
        return found


def asked_digest(question: str, terms: str = "", lists: str = "") -> bytes:
    """Digest of question, sum's terms and confirmed lists, all in hex; "" is none."""
    parts = [bytes.fromhex(part) for part in (question, terms, lists)]
    return hashlib.sha256(framed(*parts)).digest()


NOTHING_ASKED = asked_digest("")
"""The digest in a receipt that does not say what was asked."""


class RunEntries:
    """One run's entries in a ledger.

    Args:
        ledger: the ledger.
        run: the run's name there.
        signed: its header, for a run for which nothing was charged.

    Attributes:
        run: its name there.
        signed: its header.
        position: of the entry that closed it, after which nothing is read; None while it is open.

    Raises:
        ValueError: the run has no header that a server has signed.
        LedgerError: the ledger cannot be trusted.
    """

    def __init__(self, ledger: Ledger, run: str, signed: SignedHeader | None = None) -> None:
        self.run = run
        self.position: int | None = None
        self._charges: list[Entry] = []
        self._asked: dict[str, dict[str, Any]] = {}
        self._joined: dict[str, list[JoinedSum]] = {}
        self._confirmed: dict[tuple[str, str], tuple[int, str]] = {}
        kept: SignedHeader | None = None
        for entry in ledger.entries(run=run):
            if entry.kind == "charge":
                self._charges.append(entry)
            elif entry.kind == "question":
                self._asked[entry.request] = json.loads(entry.body)
            elif entry.kind == "confirmed":
                self._confirm(entry)
            elif entry.kind == "run":
                kept = SignedHeader.from_text(entry.body)
            elif entry.kind == "closed":
                self.position = entry.position
                break
        if kept is None and not self._charges:
            kept = signed
        if kept is None:
            raise ValueError(f"run {run}: no server has signed a header of it")
        self.signed = kept

    @property
    def header(self) -> RunHeader:
        """The run's header, parsed."""
        return self.signed.header

    def of(self, client: str) -> tuple[ReceiptEntry, ...]:
        """Entries of ``client``, in the order of rounds and purposes."""
        charges = [entry for entry in self._charges if client in entry.clients]
        found = [self._entry(entry, client) for entry in charges]
        return tuple(sorted(found, key=_about))

    def of_all(self) -> tuple[ReceiptEntry, ...]:
        """Entries of all clients; those that were charged and asked alike in one."""
        alike: dict[tuple[Any, ...], list[int]] = {}
        for entry in self._charges:
            clients = entry.clients
            shared = None
            if not self._sums(entry):
                shared = self._entry(entry, clients[0])
            for client in clients:
                one = shared or self._entry(entry, client)
                numbers = None
                if one.masked is not None:
                    numbers = one.masked.survivors, one.masked.minimum, one.masked.colluders
                about = (*_about(one), one.event, one.digest, numbers)
                alike.setdefault(about, []).append(int(client))
        found = []
        for (number, purpose, event, digest, numbers), ids in alike.items():
            masked = None if numbers is None else Masked(*numbers)
            found.append(ReceiptEntry(number, purpose, event, digest, masked, to_ranges(ids)))
        return tuple(sorted(found, key=lambda one: (*_about(one), one.clients)))

    def _entry(self, entry: Entry, client: str) -> ReceiptEntry:
        asked = self._asked.get(entry.request)
        if asked is None:
            raise ValueError(f"{entry}: was charged by a version that kept no questions")
        joined = next((each for each in self._sums(entry) if client in each.places), None)
        about = entry.round, str(entry.purpose), entry.event
        if joined is None:
            return ReceiptEntry(*about, asked_digest(asked["question"]))
        survivors, lists = self._confirmed.get((joined.terms, client), (0, ""))
        digest = asked_digest(asked["question"], joined.terms, lists)
        place = joined.places[client]
        masked = Masked(survivors, joined.minimum, joined.colluders, place)
        return ReceiptEntry(*about, digest, masked)

    def _sums(self, entry: Entry) -> Sequence[JoinedSum]:
        """The secure sums that a charge's request was for."""
        if entry.request not in self._joined:
            sums = self._asked.get(entry.request, {}).get("sums", ())
            self._joined[entry.request] = [JoinedSum.from_plain(plain) for plain in sums]
        return self._joined[entry.request]

    def _confirm(self, entry: Entry) -> None:
        body = json.loads(entry.body)
        for client in body["clients"]:
            lists = body["survivors"], body["lists"]
            self._confirmed.setdefault((entry.request, str(client)), lists)


def receipt_of(
    entries: RunEntries,
    client: str,
    *,
    number: int = 1,
    previous: str | None = None,
    statement: str | None = None,
    peers: str | None = "any",
    beside: tuple[Beside, ...] = (),
) -> Receipt:
    """The receipt of ``client`` for a run, from its entries in the ledger.

    ``peers``: by which rule it knew others, for secure sums. The rest as in ``Receipt``. Where
    cohorts are secret, entries are those of the header's plan; ValueError where that has none.
    """
    header = entries.header
    if header.secret:
        found, beside = planned_entries(header), ()
    else:
        found = entries.of(client)
    return _receipt(
        entries,
        found,
        client=client,
        number=number,
        previous=previous,
        statement=statement,
        peers=peers,
        beside=beside,
    )


def receipt_of_all(
    entries: RunEntries, clients: Iterable[int], statement: str | None = None
) -> Receipt:
    """One receipt for all ``clients`` of a simulation."""
    found = entries.of_all()
    return _receipt(entries, found, client=to_ranges(clients), statement=statement, peers="any")


def planned_entries(header: RunHeader) -> tuple[ReceiptEntry, ...]:
    """All that ``header`` plans for each client, whether it is drawn or not.

    ValueError where the plan leaves an event open, or has more than 10,000 phases.
    """
    planned = sum(len(range(p.first, p.last + 1, p.every)) for p in header.phases)
    if planned > MAX_PLANNED:
        raise ValueError(f"the run header plans {planned} phases, of {MAX_PLANNED} at most")
    found = []
    for phase in header.phases:
        if phase.event is None:
            raise ValueError(f"{phase.purpose}: the run header names no event for it")
        for number in range(phase.first, phase.last + 1, phase.every):
            found.append(ReceiptEntry(number, phase.purpose, phase.event, NOTHING_ASKED))
    return tuple(sorted(found, key=_about))


def counts_of(events: Iterable[Event]) -> tuple[tuple[Event, int], ...]:
    """Each of ``events`` once, with its count, in the order of their texts."""
    counted = Counter(map(event_text, events))
    return tuple((event_from_text(text), count) for text, count in sorted(counted.items()))


def _receipt(entries: RunEntries, found: tuple[ReceiptEntry, ...], **rest: Any) -> Receipt:
    """A receipt with ``found``; unit and adjacency are what all of its events cover."""
    header = entries.header
    stated: set[Neighbours] = set()
    for entry in found:
        stated |= {release.neighbours for release in releases(entry.event)}
    neighbours = common(stated) if stated else Neighbours(header.unit, header.adjacency)
    if not any(entry.masked for entry in found):
        rest["peers"] = None
    return Receipt(
        header=entries.signed.digest,
        unit=neighbours.unit,
        adjacency=neighbours.adjacency,
        entries=found,
        **rest,
    )


def _about(entry: ReceiptEntry) -> tuple[int, str]:
    return entry.round, entry.purpose


def _word(digest: bytes) -> str:
    """A digest in base64 without padding."""
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _digest(word: str) -> bytes:
    try:
        found = base64.urlsafe_b64decode(f"{_text('digest', word)}=")
    except (binascii.Error, ValueError) as error:
        raise ValueError("digest: must be base64") from error
    if len(found) != _DIGEST_BYTES:
        raise ValueError(f"digest: must have {_DIGEST_BYTES} bytes")
    return found


def _entry(plain: Any, purposes: Sequence[str], events: Sequence[Event]) -> ReceiptEntry:
    """The inverse of an entry's list; ValueError, TypeError or IndexError for anything else."""
    number, purpose, event, word, *rest = _list(plain)
    clients: str | None = None
    if rest and isinstance(rest[0], str):
        clients = rest[0]
        from_ranges(clients, MAX_CLIENTS)
    masked = None
    if len(rest) == 4:
        place = None if clients is not None else _whole("place", rest[0], 0)
        masked = Masked(
            survivors=_whole("survivors", rest[1], 0),
            minimum=_whole("minimum", rest[2], 1),
            colluders=_whole("colluders", rest[3], 0),
            place=place,
        )
    elif len(rest) != (clients is not None):
        raise ValueError("entries: of 4 fields, or 8 where the release is masked")
    return ReceiptEntry(
        _whole("round", number, 0),
        purposes[_whole("purpose", purpose, 0)],
        events[_whole("event", event, 0)],
        _digest(word),
        masked,
        clients,
    )


def _beside(plain: Any, events: Sequence[Event]) -> Beside:
    if not isinstance(plain, dict) or plain.keys() != {"header", "closed", "entries"}:
        raise ValueError("beside: each has header, closed and entries and nothing else")
    if type(plain["closed"]) is not bool:
        raise ValueError("closed: must be true or false")
    counts = [
        (events[_whole("event", event, 0)], _whole("count", count, 1))
        for event, count in map(_list, _list(plain["entries"]))
    ]
    return Beside(_hex("header", plain["header"]), plain["closed"], tuple(counts))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("must be a list")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"{name}: must be printable text")
    return value


def _whole(name: str, value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{name}: must be a whole number of at least {least}")
    return value


def _hex(name: str, value: Any) -> str:
    is_digest = (
        isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
    )
    if not is_digest:
        raise ValueError(f"{name}: must be a SHA-256 of 64 hex digits")
    return str(value)


def _hex_or_none(name: str, value: Any) -> str | None:
    return None if value is None else _hex(name, value)


def _peers(value: Any) -> str | None:
    return value if value in (None, *PEERS) else _hex("peers", value)
