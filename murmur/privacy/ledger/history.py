"""The running result of reading the ledger from its first entry: who has spent what.

Reading is verifying: an entry is taken in only if it follows the one before it, its seal is the
digest of its contents, and the last one read carries the device's signature. Since a seal covers
the seal before it, one signature stands for the whole history up to there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from murmur.privacy.ledger.entry import Entry, LedgerError
from murmur.privacy.ledger.signature import Signer

# Entries are held back until a signature confirms them, but not many more than these.
_HELD = 10_000


def check(entry: Entry) -> Entry:
    """``entry``; LedgerError if its contents are not those that were sealed."""
    try:
        sealed = entry.digest() == entry.seal
    except (TypeError, ValueError, AttributeError):  # not even of the columns' types
        sealed = False
    if not sealed:
        raise LedgerError(f"{entry}: its contents do not match its seal: it was altered")
    return entry


def is_signed(entry: Entry, signer: Signer) -> bool:
    """Whether ``entry`` carries the device's signature for all that leads to it."""
    return signer.holds("commit", _position_and_seal(entry), entry.signature)


def signed(entry: Entry, signer: Signer) -> Entry:
    """``entry`` with the device's signature."""
    return entry._replace(signature=signer.sign("commit", _position_and_seal(entry)))


def follow(
    position: int, seal: bytes, entries: Iterable[Entry], signer: Signer
) -> Iterable[list[Entry]]:
    """``entries`` in signed groups, after the entry ``position`` with ``seal``.

    LedgerError names the first that does not fit, or the last if it is not signed.
    """
    held: list[Entry] = []
    for entry in entries:
        if entry.position != position + 1:
            raise LedgerError(f"entry {position + 1} is missing: it was removed")
        if entry.previous != seal:
            raise LedgerError(
                f"{entry}: does not follow entry {position}: one of the two was replaced"
            )
        held.append(check(entry))
        position, seal = entry.position, entry.seal
        if len(held) >= _HELD and entry.signature and is_signed(entry, signer):
            yield held
            held = []
    if held:
        if not is_signed(held[-1], signer):
            raise LedgerError(f"{held[-1]}: this device's signature is missing or does not match")
        yield held


@dataclass
class History:
    """Everything up to entry ``position``, whose seal is ``seal``; ``time``: the latest so far.

    ``spends[client]`` counts the client's releases by event text, over its whole life.
    """

    position: int
    seal: bytes
    time: str = ""
    spends: dict[str, Counter[str]] = field(default_factory=dict)

    def take_in(self, entries: Iterable[Entry], signer: Signer) -> None:
        """Go on with ``entries``; LedgerError at the first that does not verify."""
        for group in follow(self.position, self.seal, entries, signer):
            for entry in group:
                self.add(entry)

    def add(self, entry: Entry) -> None:
        """Take in an entry that was verified and comes next."""
        self.position, self.seal = entry.position, entry.seal
        self.time = max(self.time, entry.time)
        if entry.client is not None:
            self.spends.setdefault(entry.client, Counter())[entry.body] += 1

    def to_text(self) -> str:
        """A snapshot, to be signed, from which reading can go on later."""
        plain = {**self.__dict__, "seal": self.seal.hex()}
        return json.dumps(plain, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> History:
        """The inverse of ``to_text``, for text whose signature was checked."""
        plain = json.loads(text)
        spends = {client: Counter(tally) for client, tally in plain["spends"].items()}
        return cls(plain["position"], bytes.fromhex(plain["seal"]), plain["time"], spends)


class Transaction:
    """The entries that one ``Log.writing`` will append, chained as they come."""

    def __init__(self, history: History, time: str) -> None:
        self.time = time
        self._entries: list[Entry] = []
        self._position, self._seal = history.position, history.seal

    def charge(
        self, client: str, run: str, round: int, purpose: str, request: str, event: str
    ) -> None:
        """Append: ``client`` will release ``event``."""
        self._append("charge", client, run, round, purpose, request, event)

    def answer(self, run: str, round: int, request: str, digest: str) -> None:
        """Append: the reply with SHA-256 ``digest`` is committed."""
        self._append("answer", None, run, round, None, request, digest)

    def entries(self, signer: Signer) -> list[Entry]:
        """All of them, the last one signed."""
        return self._entries[:-1] + [signed(entry, signer) for entry in self._entries[-1:]]

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
        self._position += 1
        asked = (client, run, round, purpose, request)
        entry = Entry(self._position, self.time, kind, *asked, body, self._seal, b"", None)
        self._seal = entry.digest()
        self._entries.append(entry._replace(seal=self._seal))


def _position_and_seal(entry: Entry) -> str:
    return f"{entry.position} {entry.seal.hex()}"
