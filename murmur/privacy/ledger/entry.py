"""What goes into the ledger, what comes back, and the encoding under which entries are sealed.

A ``Charge`` goes in and an ``Outcome`` comes back. What is kept is an ``Entry``: it holds the
*event* of the release (which mechanism, with which parameters) as canonical JSON, never an ε, so
that a better accountant improves the figure without touching the record.
"""

import hashlib
import json
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import NamedTuple

from murmur.privacy.events import ComposedEvent, Event, RepeatedEvent, UnknownEvent, event_from_dict
from murmur.privacy.ledger.blocks import MARK, EventCounts, decode_ids

_JSON = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False)
_MAX_NAME_CHARACTERS = 256
_DIGEST = re.compile(r"[0-9a-f]{16,128}")


class LedgerError(Exception):
    """The ledger cannot be trusted or used; its text is the reason to refuse everything."""


@dataclass(frozen=True)
class Charge:
    """A release that is about to happen.

    ``client``, ``run``, ``round`` and ``purpose`` together name the release, and a client makes
    each once.

    Attributes:
        client: the client's id. It is kept as text: 7 and "7" are the same client.
        run: the run's name on this device.
        round: the round's number, in 0..2^63 - 1.
        purpose: what the release is for, such as "train", "label" or "evaluate".
        request: lower-case hex digest of all that the server sent. The same request is answered
            again from storage, another one for the same release is refused.
        event: what the answer releases.

    Raises:
        ValueError: a field could not be stored, or not be told apart from others later.
    """

    client: int | str
    run: str
    round: int
    purpose: str
    request: str
    event: Event

    def __post_init__(self) -> None:
        require_name("client", self.client_id)
        require_name("run", self.run)
        require_name("purpose", self.purpose)
        require_round(self.round)
        require_digest("request", self.request)
        if not isinstance(self.event, Event) or isinstance(self.event, UnknownEvent):
            raise ValueError(f"event={self.event!r}: must be one of murmur.privacy.events")

    @cached_property
    def client_id(self) -> str:
        """``client`` as the ledger keeps it; ValueError for what is neither integer nor text."""
        if isinstance(self.client, str):
            return self.client
        try:
            return str(int(operator.index(self.client)))
        except TypeError as error:
            raise ValueError(f"client={self.client!r}: must be an integer or text") from error


class Status(StrEnum):
    """Outcome of a charge."""

    CHARGED = "charged"  # a new entry is committed: answer
    REPEATED = "repeated"  # charged before, nothing has left: answer once under that charge
    ANSWERED = "answered"  # the stored reply is the answer; compute nothing
    REFUSED = "refused"  # answer nothing


@dataclass(frozen=True)
class Outcome:
    """The ledger's decision on one charge.

    Attributes:
        status: what the client is to do now.
        reason: why a charge is refused, for the device's owner; else empty.
        code: the same as a short slug for machines ("other-request", "policy-expired", ...).
    """

    status: Status
    reason: str = ""
    code: str = ""

    @property
    def may_compute(self) -> bool:
        """True if the client may compute and release an answer now."""
        return self.status in (Status.CHARGED, Status.REPEATED)


class Entry(NamedTuple):
    """One line of the ledger, in the order of the database's columns.

    Attributes:
        position: 1 for the first entry, and one more for each that follows.
        time: in UTC, ISO 8601 with milliseconds; never decreases.
        kind: one of

            * "charge": ``client`` will release ``body``, an event as JSON;
            * "answer": the reply to ``request``, whose SHA-256 is ``body``, is committed and may
              leave;
            * "run": the first header of ``run``, with SHA-256 ``request`` (``SignedHeader``);
            * "question": what ``request`` asks all clients alike, and the server's signatures of
              that (``Asked``). It comes before the charges for ``request``;
            * "confirmed": survivors of the secure sum whose terms have the digest ``request``
              (``Confirmed``);
            * "closed": nothing more of ``run`` is charged; ``request``: digest of its header, or
              zeros where it has none; ``body``: what its receipts say beside their entries.
        client: whose release a charge is, or whose (``blocks``); None for all other kinds.
        run: the run's name on this device.
        round: the round's number; 0 for what is of a whole run.
        purpose: what was asked for; None for answers and for what is of a whole run.
        request: hex digest of what the server sent; see ``kind``.
        body: see ``kind``.
        previous: the seal of the entry before, or the header's digest.
        seal: SHA-256 of everything before it in this entry.
        signature: the device's, over all that leads here; on the last entry of each commit only.
    """

    position: int
    time: str
    kind: str
    client: str | None
    run: str
    round: int
    purpose: str | None
    request: str
    body: str
    previous: bytes
    seal: bytes
    signature: bytes | None

    @property
    def event(self) -> Event:
        """Event of a charge; an UnknownEvent where a newer version wrote it."""
        return event_from_text(self.body)

    @property
    def clients(self) -> Sequence[str]:
        """Clients that a charge names: one, or a block; LedgerError for a malformed block."""
        try:
            return decode_ids(self.client)
        except ValueError as error:
            raise LedgerError(f"entry {self.position}: {error}") from error

    def encoding(self) -> str:
        """The sealed part: a JSON array, in ASCII, of every field before the seal."""
        return _JSON.encode([*self[:-3], self.previous.hex()])

    def contents_digest(self) -> bytes:
        """Digest of the entry's contents, which ``seal`` must equal."""
        return hashlib.sha256(self.encoding().encode()).digest()

    def __str__(self) -> str:
        whose = f"client {self.client:.40}, " if self.client is not None else ""
        if whose.startswith(f"client {MARK}"):
            whose = whose.removeprefix("client ").replace("\t", " ")
        return f"entry {self.position} ({self.kind}, {whose}run {self.run}, round {self.round})"


@lru_cache(maxsize=4096)
def event_text(event: Event) -> str:
    """``event`` as canonical JSON: equal events give equal text.

    Raises ValueError for an event with a value that JSON does not have.
    """
    try:
        return _JSON.encode(event.to_dict())
    except (TypeError, ValueError) as error:
        raise ValueError(f"event={event!r}: cannot be written as JSON: {error}") from error


@lru_cache(maxsize=4096)
def event_from_text(text: str) -> Event:
    """The inverse of ``event_text``; an UnknownEvent for what this version cannot read.

    An unknown event is kept and never accounted for: its client releases nothing more.
    """
    try:
        return event_from_dict(json.loads(text))
    except (TypeError, ValueError, AttributeError):
        return UnknownEvent(text)


@lru_cache(maxsize=4096)
def composed(tally: EventCounts) -> ComposedEvent:
    """All of a client's releases as one event.

    Equal releases stand once with their count, in the order of their texts, so that equal lives
    give equal events (which accountants cache by).
    """
    parts: list[Event] = []
    for text, count in sorted(tally):
        if count == 1:
            parts.append(event_from_text(text))
        else:
            parts.append(RepeatedEvent(event_from_text(text), count))
    return ComposedEvent(tuple(parts))


def require_name(name: str, value: object) -> None:
    """Raise ValueError unless ``value`` is printable text of 1 to 256 characters."""
    if not isinstance(value, str) or not 1 <= len(value) <= _MAX_NAME_CHARACTERS:
        raise ValueError(
            f"{name}={value!r:.40}: must be text of 1 to {_MAX_NAME_CHARACTERS} characters"
        )
    if not value.isprintable():
        raise ValueError(f"{name}={value!r:.40}: must be printable text")


def require_round(value: object) -> None:
    """Raise ValueError unless ``value`` is an integer that SQLite can hold and a round can have."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"round={value!r:.40}: must be an integer in 0..2^63-1")


def require_digest(name: str, value: object) -> None:
    """Raise ValueError unless ``value`` is a hex digest of 8 to 64 bytes."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ValueError(f"{name}={value!r:.40}: must be 16 to 128 lower-case hex digits")
