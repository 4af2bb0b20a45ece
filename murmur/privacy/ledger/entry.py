"""What goes into the ledger, what comes back, and the encoding under which entries are sealed."""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from murmur.privacy.events import ComposedEvent, Event, RepeatedEvent, UnknownEvent, event_from_dict

_JSON = json.JSONEncoder(separators=(",", ":"), sort_keys=True, allow_nan=False)
_LONGEST_NAME = 256
_DIGEST = re.compile(r"[0-9a-f]{16,128}")


class LedgerError(Exception):
    """The ledger cannot be trusted or used; its text is the reason to refuse everything."""


@dataclass(frozen=True)
class Charge:
    """A release that is about to happen.

    ``client``, ``run``, ``round`` and ``purpose`` ("train", "label", "evaluate") together name
    the release; a client makes each once. ``client`` is kept as text: 7 and "7" are the same
    client. ``request``: lower-case hex digest of all that the server sent: the same request is
    answered again from storage, another one is refused. ``event``: what the answer releases.

    Raises ValueError for anything that could not be stored or told apart later.
    """

    client: int | str
    run: str
    round: int
    purpose: str
    request: str
    event: Event

    def __post_init__(self) -> None:
        for name in ("client", "run", "purpose"):
            value = self.client_id if name == "client" else getattr(self, name)
            require_name(name, value)
        require_round(self.round)
        require_digest("request", self.request)
        if not isinstance(self.event, Event) or isinstance(self.event, UnknownEvent):
            raise ValueError(f"event={self.event!r}: must be one of murmur.privacy.events")

    @property
    def client_id(self) -> str:
        """``client`` as the ledger keeps it."""
        if isinstance(self.client, str):
            return self.client
        try:
            return str(int(operator.index(self.client)))
        except TypeError as error:
            raise ValueError(f"client={self.client!r}: must be an integer or text") from error


class Status(StrEnum):
    """What becomes of a charge."""

    CHARGED = "charged"  # a new entry is committed: answer
    REPEATED = "repeated"  # charged before, nothing has left: answer once under that charge
    ANSWERED = "answered"  # the stored reply is the answer; compute nothing
    REFUSED = "refused"  # answer nothing


@dataclass(frozen=True)
class Outcome:
    """The ledger's decision on one charge; ``reason`` and the short ``code`` explain refusals."""

    status: Status
    reason: str = ""
    code: str = ""

    @property
    def may_compute(self) -> bool:
        """Whether the client may compute and release an answer now."""
        return self.status in (Status.CHARGED, Status.REPEATED)


class Entry(NamedTuple):
    """One line of the ledger.

    ``kind`` is "charge" (``client`` will release ``body``, an event as JSON) or "answer" (the
    reply to ``request``, whose SHA-256 is ``body``, is committed and may leave). ``previous`` is
    the seal of the entry before, ``seal`` the SHA-256 of everything before it in this one, and
    ``signature`` the device's, on the last entry of each commit.
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
        """What a charge released."""
        return event_from_text(self.body)

    def encoding(self) -> str:
        """The sealed part: a JSON array, in ASCII, of every field before the seal."""
        return _JSON.encode([*self[:-3], self.previous.hex()])

    def digest(self) -> bytes:
        """What ``seal`` must be."""
        return hashlib.sha256(self.encoding().encode()).digest()

    def __str__(self) -> str:
        whose = f"client {self.client}, " if self.client is not None else ""
        return f"entry {self.position} ({self.kind}, {whose}run {self.run}, round {self.round})"


@lru_cache(maxsize=4096)
def event_text(event: Event) -> str:
    """``event`` as canonical JSON: equal events give equal text."""
    try:
        return _JSON.encode(event.to_dict())
    except (TypeError, ValueError) as error:
        raise ValueError(f"event={event!r}: cannot be written as JSON: {error}") from error


@lru_cache(maxsize=4096)
def event_from_text(text: str) -> Event:
    """The inverse of ``event_text``; an UnknownEvent for what this version cannot read."""
    try:
        return event_from_dict(json.loads(text))
    except (TypeError, ValueError, AttributeError):
        return UnknownEvent(text)


def composed(tally: Mapping[str, int]) -> ComposedEvent:
    """All of a client's releases as one event; ``tally`` counts them by event text."""
    return ComposedEvent(
        tuple(
            event_from_text(text) if count == 1 else RepeatedEvent(event_from_text(text), count)
            for text, count in sorted(tally.items())
            if count > 0
        )
    )


def require_name(name: str, value: object) -> None:
    """ValueError unless ``value`` is printable text of a length that can be stored and shown."""
    if not isinstance(value, str) or not 1 <= len(value) <= _LONGEST_NAME:
        raise ValueError(f"{name}={value!r:.40}: must be text of 1 to {_LONGEST_NAME} characters")
    if not value.isprintable():
        raise ValueError(f"{name}={value!r:.40}: must be printable text")


def require_round(value: object) -> None:
    """ValueError unless ``value`` is an integer that a round can have."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"round={value!r:.40}: must be an integer in 0..2^63-1")


def require_digest(name: str, value: object) -> None:
    """ValueError unless ``value`` is a hex digest."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ValueError(f"{name}={value!r:.40}: must be 16 to 128 lower-case hex digits")
