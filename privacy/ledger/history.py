"""The running result of reading the ledger from its first entry: who has spent what.

Reading is verifying: an entry is taken in only if it follows the one before it and its seal
holds. Since a seal covers the entry's position and the seal before it, the last seal stands for
the whole history; that pair is what the anchor outside the database remembers.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from privacy.ledger.entry import Entry, LedgerError

GENESIS = hashlib.sha256(b"murmur ledger, format 1").digest()


@dataclass(frozen=True)
class Sealer:
    """HMAC-SHA256 under the device's key; ``purpose`` keeps kinds of sealed text apart."""

    key: bytes = field(repr=False)

    def seal(self, purpose: str, text: str) -> bytes:
        """The 32 bytes that only a holder of the key can compute for ``text``."""
        return hmac.digest(self.key, f"{purpose}\0{text}".encode(), "sha256")

    def holds(self, purpose: str, text: str, seal: bytes) -> bool:
        """Whether ``seal`` was made for ``text`` under this key."""
        return hmac.compare_digest(self.seal(purpose, text), seal)

    def check(self, entry: Entry) -> Entry:
        """``entry``; LedgerError if it was altered."""
        try:
            genuine = self.holds("entry", entry.encoding(), entry.seal)
        except (TypeError, ValueError, AttributeError):  # not even of the columns' types
            genuine = False
        if not genuine:
            raise LedgerError(f"{entry}: its contents do not match its seal: it was altered")
        return entry

    def sealed(self, entry: Entry) -> Entry:
        """``entry`` with its seal filled in."""
        return entry._replace(seal=self.seal("entry", entry.encoding()))


@dataclass
class History:
    """Everything up to entry ``position``, whose seal is ``seal``.

    ``spends[client]`` counts the client's releases by event text, over its whole life.
    """

    position: int = 0
    seal: bytes = GENESIS
    spends: dict[str, Counter[str]] = field(default_factory=dict)

    def verified(self, entries: Iterable[Entry], sealer: Sealer) -> Iterator[Entry]:
        """Take in ``entries``, yielding each; LedgerError names the first that does not fit."""
        for entry in entries:
            if entry.position != self.position + 1:
                raise LedgerError(f"entry {self.position + 1} is missing: it was removed")
            if entry.previous != self.seal:
                raise LedgerError(
                    f"{entry}: does not follow entry {self.position}: one of the two was replaced"
                )
            self.add(sealer.check(entry))
            yield entry

    def add(self, entry: Entry) -> None:
        """Take in an entry that is known to be genuine and next."""
        self.position, self.seal = entry.position, entry.seal
        if entry.client is not None:
            self.spends.setdefault(entry.client, Counter())[entry.body] += 1

    def to_text(self) -> str:
        """A snapshot, to be sealed, from which reading can go on later."""
        return json.dumps(
            {"position": self.position, "seal": self.seal.hex(), "spends": self.spends},
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str) -> History:
        """The inverse of ``to_text``, for text whose seal was checked."""
        plain = json.loads(text)
        spends = {client: Counter(tally) for client, tally in plain["spends"].items()}
        return cls(plain["position"], bytes.fromhex(plain["seal"]), spends)


class Transaction:
    """The entries that one ``Log.writing`` will append, sealed and chained as they come."""

    def __init__(self, history: History, sealer: Sealer, time: str) -> None:
        self.entries: list[Entry] = []
        self._position, self._seal = history.position, history.seal
        self._sealer = sealer
        self._time = time

    def charge(
        self, client: str, run: str, round: int, purpose: str, request: str, event: str
    ) -> None:
        """Append: ``client`` will release ``event``."""
        self._append("charge", client, run, round, purpose, request, event)

    def answer(self, run: str, round: int, request: str, digest: str) -> None:
        """Append: the reply with SHA-256 ``digest`` is committed."""
        self._append("answer", None, run, round, None, request, digest)

    def _append(
        self,
        kind: str,
        client: str | None,
        run: str,
        round: int,
        purpose: str | None,
        request: str,
        body: str,
    ) -> None:
        position = self._position + 1
        question = (client, run, round, purpose, request)
        entry = Entry(position, self._time, kind, *question, body, self._seal, b"")
        entry = self._sealer.sealed(entry)
        self._position, self._seal = position, entry.seal
        self.entries.append(entry)
