"""Closing a run on a device: nothing more of it is charged, and its clients' receipts are made.

In this order: the entry ``closed`` is durable, with all that receipts say beside the run's entries;
then their bytes lie in ``FOLDER/receipts/HEADER/CLIENT.json``; then they may leave. The same bytes
are given from then on. Killed in between, they are made from the ledger again.

Whether receipts are given is the owner's word (``receipts`` in the policy), and it follows from
header, policy and events alone, never from data.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from murmur.files import owner_only_folder, replace_file
from murmur.privacy.envelope import Envelope
from murmur.privacy.events import Event
from murmur.privacy.ledger import Ledger
from murmur.privacy.policy import Policy
from murmur.privacy.receipt import (
    RECEIPT_TYPE,
    Beside,
    Receipt,
    RunEntries,
    counts_of,
    receipt_of,
)
from murmur.privacy.run_header import SignedHeader

FOLDER = "receipts"


@dataclass(frozen=True)
class Closing:
    """Facts of receipts beside a run's entries, fixed when the run is closed.

    Attributes:
        clients: who gets a receipt, by their names in the ledger.
        peers: by which rule they knew others in secure sums, see ``Receipt``.
        statement: SHA-256 of the signed statement's payload, in hex.
    """

    clients: tuple[str, ...] = ()
    peers: str | None = None
    statement: str | None = None

    def to_text(self) -> str:
        """The body of an entry "closed", as JSON."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> "Closing":
        """The inverse of ``to_text``; without clients where a run was closed without receipts."""
        plain = json.loads(text or "{}")
        return cls(**{**plain, "clients": tuple(plain.get("clients", ()))})


class Receipts:
    """The receipts of one device's clients.

    Args:
        ledger: the device's.
        folder: its state.
    """

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self._ledger = ledger
        self._folder = folder / FOLDER
        self._headers: dict[str, SignedHeader | None] = {}

    def draft(
        self, run: str, closing: Closing, signed: SignedHeader | None = None
    ) -> list[Receipt]:
        """The receipts that closing ``run`` now would give, of each client of ``closing``.

        ``signed``: the run's header, where nothing was charged for it. ValueError where the run has
        no header, or its receipt cannot be made.
        """
        entries = RunEntries(self._ledger, run, signed)
        return [self._receipt(entries, client, closing) for client in closing.clients]

    def close(
        self, run: str, closing: Closing, policy: Policy, signed: SignedHeader
    ) -> dict[str, bytes]:
        """Close ``run`` and return its clients' receipts, signed; the same from the first time on.

        Args:
            run: its name in the ledger.
            closing: what receipts are to say; where the run is closed, what was said then counts.
            policy: of the device's owner, now.
            signed: the run's header, verified.

        Raises:
            Refusal: the policy gives no receipt.
            ValueError: no receipt can be made; the run goes on.
        """
        policy.check_receipt(signed.header)
        body = self._ledger.closing(run)
        if body is None:
            self._check(run, closing, policy, signed)
            body = self._ledger.close_run(run, closing.to_text(), signed)
        closed = Closing.from_text(body)
        self._check(run, closed, policy, signed)
        return {client: self._content(run, client, closed) for client in closed.clients}

    def _check(self, run: str, closing: Closing, policy: Policy, signed: SignedHeader) -> None:
        """Refusal where the policy lets a receipt not out, ValueError where there is none."""
        entries = RunEntries(self._ledger, run, signed)
        if entries.signed.digest != signed.digest:
            raise ValueError(f"run {run}: has another header, and a run has one")
        for client in closing.clients:
            receipt = self._receipt(entries, client, closing, policy)
            policy.check_receipt(signed.header, receipt.events)

    def _content(self, run: str, client: str, closing: Closing) -> bytes:
        """The bytes of one receipt of a closed run, made where they are not kept."""
        entries = RunEntries(self._ledger, run)
        path = self._folder / entries.signed.digest / f"{_file_name(client)}.json"
        if not path.exists():
            receipt = self._receipt(entries, client, closing)
            made = self._ledger.sign_envelope(
                RECEIPT_TYPE, receipt.subjects, receipt.to_predicate()
            )
            owner_only_folder(path.parent)
            replace_file(path, made.to_bytes())
        return path.read_bytes()

    def _receipt(
        self,
        entries: RunEntries,
        client: str,
        closing: Closing,
        policy: Policy | None = None,
    ) -> Receipt:
        """One client's receipt, with its place in the chain of those for this server's key.

        ``policy``: must let out what other runs have charged, Refusal where it does not; None for a
        draft, which nobody but the owner reads.
        """
        until = entries.position or math.inf
        number, previous, since = 1, None, 0
        for run, position, closed in self._closed(entries.header.server, until):
            if client in closed.clients:
                number += 1
                previous = Envelope.read(self._content(run, client, closed)).digest
                since = position
        return receipt_of(
            entries,
            client,
            number=number,
            previous=previous,
            statement=closing.statement,
            peers=closing.peers,
            beside=self._beside(entries, client, since, until, policy),
        )

    def _closed(self, key: str, until: float) -> Iterator[tuple[str, int, Closing]]:
        """Runs under the server's ``key`` that were closed before the entry ``until``, in order."""
        for run, position, body in self._ledger.closed_runs():
            signed = self._header(run)
            if position < until and signed is not None and signed.header.server == key:
                yield run, position, Closing.from_text(body)

    def _beside(
        self, entries: RunEntries, client: str, since: int, until: float, policy: Policy | None
    ) -> tuple[Beside, ...]:
        """Other runs under the same key that have charged ``client`` between two entries.

        Those whose cohorts are secret are left out: that they have charged it says it was drawn.
        """
        if entries.header.secret:
            return ()
        charged: dict[str, list[Event]] = {}
        for entry in self._ledger.entries(client):
            if entry.run != entries.run and since < entry.position < until:
                signed = self._header(entry.run)
                if signed is None or signed.header.secret:
                    continue
                if signed.header.server == entries.header.server:
                    told = entry.round, str(entry.purpose), entry.event
                    if policy is not None:
                        policy.check_receipt(signed.header, [told])
                    charged.setdefault(entry.run, []).append(entry.event)
        closed = {run for run, position, _ in self._ledger.closed_runs() if position < until}
        found = []
        for run, events in charged.items():
            signed = self._header(run)
            assert signed is not None
            found.append(Beside(signed.digest, run in closed, counts_of(events)))
        return tuple(sorted(found, key=lambda other: other.header))

    def _header(self, run: str) -> SignedHeader | None:
        """The header of ``run``, read once."""
        if run not in self._headers:
            self._headers[run] = self._ledger.run_header(run)
        return self._headers[run]


def _file_name(client: str) -> str:
    """The client's name where it can be a file's; else its hash, in 64 digits."""
    if client.isascii() and client.isalnum() and len(client) < 64:
        return client
    return hashlib.sha256(client.encode()).hexdigest()
