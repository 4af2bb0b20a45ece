"""What makes a change to the ledger visible: a header, a chain of seals, and signatures.

The header names the device's public key. The first entry follows the header's digest, and each
later one the seal of the entry before it, so a seal stands for the whole history up to there. The
last entry of each commit carries the device's Ed25519 signature of its seal: anybody who has the
public key can check it, and nobody but the device can make it.

Reading is verifying. ``History.append_verified`` accepts an entry only if it follows the one before
it, if its seal is the digest of its contents, and if the last one read is signed; what each client
has spent is counted on the way.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from murmur.privacy.ledger.blocks import NOTHING, EventCounts, add, decode_ids, encode_ids
from murmur.privacy.ledger.entry import Entry, LedgerError
from murmur.privacy.signing import Signer

FORMAT = 3
# Entries are held back until a signature confirms them, but not many more than these.
_MAX_UNCONFIRMED_ENTRIES = 10_000


@dataclass(frozen=True)
class Header:
    """The ledger's identity: a JSON object ``text`` with ``format``, ``created`` and ``key``.

    ``key`` is the public key that signs, in hex. Other members are kept as they are.
    """

    text: str

    @classmethod
    def of(cls, created: str, key: str) -> "Header":
        """The header of a ledger that is begun at the UTC time ``created``."""
        values = {"format": FORMAT, "created": created, "key": key}
        return cls(json.dumps(values, separators=(",", ":"), sort_keys=True))

    @property
    def text_digest(self) -> bytes:
        """Predecessor of the first entry: SHA-256 of the text, 32 bytes."""
        return hashlib.sha256(self.text.encode()).digest()

    @property
    def id(self) -> str:
        """The ledger's name: 32 hex digits, which stand for its key and its beginning."""
        return self.text_digest.hex()[:32]

    @property
    def key(self) -> str:
        """The public key, in hex; LedgerError for a header that has none."""
        return self._value("key")

    @property
    def created(self) -> str:
        """When the ledger was begun, in UTC; LedgerError for a header that does not say."""
        return self._value("created")

    def _value(self, name: str) -> str:
        try:
            return str(json.loads(self.text)[name])
        except (ValueError, TypeError, KeyError) as error:
            raise LedgerError("the ledger's header was altered") from error


class LedgerSigner(Signer):
    """A device's key, for the purposes "commit", "anchor", "snapshot" and "export"."""

    role = "ledger"


def check(entry: Entry) -> Entry:
    """``entry`` itself; LedgerError if its contents are not those that were sealed."""
    try:
        sealed = entry.contents_digest() == entry.seal
    except (TypeError, ValueError, AttributeError):  # not even of the columns' types
        sealed = False
    if not sealed:
        raise LedgerError(f"{entry}: its contents do not match its seal: it was altered")
    return entry


def is_signed(entry: Entry, signer: Signer) -> bool:
    """True if ``entry`` carries the device's signature for all that leads to it."""
    return signer.is_valid("commit", _position_and_seal(entry), entry.signature)


def verify_chain(
    position: int, seal: bytes, entries: Iterable[Entry], signer: Signer
) -> Iterator[list[Entry]]:
    """Verify ``entries``, which come after the entry ``position`` with ``seal``.

    Yields them in groups that each end with a valid signature: at most a few more than 10,000 are
    held at once, however long the ledger. LedgerError names the first entry that does not fit, or
    the last one if it is not signed; nothing after the last valid signature is yielded.
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
        position = entry.position
        seal = entry.seal
        if len(held) >= _MAX_UNCONFIRMED_ENTRIES and entry.signature and is_signed(entry, signer):
            yield held
            held = []
    if held:
        if not is_signed(held[-1], signer):
            raise LedgerError(f"{held[-1]}: this device's signature is missing or does not match")
        yield held


@dataclass
class History:
    """The running result of reading a ledger from its first entry: who has spent what.

    Attributes:
        position: the last entry that was taken in; 0 for none.
        seal: that entry's seal, or the header's digest.
        time: the latest time so far.
        spends: what each client was charged, over its whole life. Those who have spent the same
            share a tally.
    """

    position: int
    seal: bytes
    time: str = ""
    spends: dict[str, EventCounts] = field(default_factory=dict)

    def append_verified(self, entries: Iterable[Entry], signer: Signer) -> None:
        """Go on with ``entries``; LedgerError at the first that does not verify."""
        for group in verify_chain(self.position, self.seal, entries, signer):
            self.add(group)

    def add(self, entries: Sequence[Entry]) -> None:
        """Take in ``entries``, which were verified and come next.

        A charge is spent from here on, whether or not it was answered.
        """
        charged: dict[Sequence[str], Counter[str]] = defaultdict(Counter)
        for entry in entries:
            if entry.kind == "charge":
                charged[tuple(entry.clients)][entry.body] += 1
            self.position = entry.position
            self.seal = entry.seal
            self.time = max(self.time, entry.time)
        for names, more in charged.items():
            grown: dict[EventCounts, EventCounts] = {}
            for name in names:
                before = self.spends.get(name, NOTHING)
                if before not in grown:
                    grown[before] = add(before, more)
                self.spends[name] = grown[before]

    def to_text(self) -> str:
        """A snapshot, to be signed, from which reading can go on later: JSON, the seal in hex."""
        alike: dict[EventCounts, list[str]] = defaultdict(list)
        for name, tally in self.spends.items():
            alike[tally].append(name)
        spends = {
            clients: dict(sorted(tally))
            for tally, names in alike.items()
            for clients in encode_ids(names)
        }
        plain = {**self.__dict__, "seal": self.seal.hex(), "spends": spends}
        return json.dumps(plain, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "History":
        """The inverse of ``to_text``, for text whose signature was checked."""
        plain = json.loads(text)
        spends: dict[str, EventCounts] = {}
        for clients, counts in plain["spends"].items():
            spends.update(dict.fromkeys(decode_ids(clients), frozenset(counts.items())))
        return cls(plain["position"], bytes.fromhex(plain["seal"]), plain["time"], spends)


class Transaction:
    """The entries that one ``Log.writing`` appends, chained as they come.

    ``history``: what they follow; it is not changed. ``time``: the UTC time that they carry.
    """

    def __init__(self, history: History, time: str) -> None:
        self._time = time
        self._position = history.position
        self._seal = history.seal
        self._entries: list[Entry] = []

    def charge(
        self, client: str, run: str, round: int, purpose: str, request: str, event: str
    ) -> None:
        """Append: ``client``, or each of a block, will release ``event``, given as its text."""
        self._append("charge", client, run, round, purpose, request, event)

    def answer(self, run: str, round: int, request: str, digest: str) -> None:
        """Append: the reply to ``request`` with SHA-256 ``digest`` (hex) is committed."""
        self._append("answer", None, run, round, None, request, digest)

    def begin_run(self, run: str, digest: str, text: str) -> None:
        """Append: ``run`` has the header with SHA-256 ``digest``; ``text`` holds it, signed."""
        self._append("run", None, run, 0, None, digest, text)

    def question(self, run: str, round: int, purpose: str, request: str, text: str) -> None:
        """Append: what ``request`` asks, as all clients of its phase are asked (``Asked``)."""
        self._append("question", None, run, round, purpose, request, text)

    def confirm(self, run: str, round: int, purpose: str, terms: str, text: str) -> None:
        """Append: which survivors of the sum with the digest ``terms`` were confirmed."""
        self._append("confirmed", None, run, round, purpose, terms, text)

    def close_run(self, run: str, digest: str, text: str) -> None:
        """Append: nothing more of ``run`` is charged; ``digest``: of its header.

        ``text``: what its receipts say beside their entries.
        """
        self._append("closed", None, run, 0, None, digest, text)

    def entries(self, signer: Signer) -> list[Entry]:
        """All of them, the last one signed; that signature covers the whole commit."""
        if not self._entries:
            return []
        *earlier, last = self._entries
        signature = signer.sign("commit", _position_and_seal(last))
        return [*earlier, last._replace(signature=signature)]

    def _append(self, kind: str, client: str | None, *rest: str | int | None) -> None:
        """``rest``: run, round, purpose, request and body."""
        self._position += 1
        columns = [self._position, self._time, kind, client, *rest, self._seal, b"", None]
        entry = Entry._make(columns)
        self._seal = entry.contents_digest()
        self._entries.append(entry._replace(seal=self._seal))


def _position_and_seal(entry: Entry) -> str:
    return f"{entry.position} {entry.seal.hex()}"
