"""The small files beside the database: the device's key, the anchor and the writers' lock."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from murmur.common import replace_durably
from murmur.privacy.ledger.entry import LedgerError
from murmur.privacy.ledger.signature import Signer

_KEY_OF_FORMAT_1 = re.compile(rb"[0-9a-f]{64}\n?")
_POLL_SECONDS = 0.0005
# Far enough apart that no disk writes both at once.
_SLOT_BYTES = 4096
_sync_data = getattr(os, "fdatasync", os.fsync)


@dataclass(frozen=True)
class Anchor:
    """How far the ledger had come, and the seal of its last entry then."""

    position: int
    seal: bytes


class KeyAndAnchor:
    """The files ``<ledger>.key``, ``<ledger>.head`` and ``<ledger>.lock``."""

    def __init__(self, ledger: Path) -> None:
        self.key = ledger.with_name(ledger.name + ".key")
        self.head = ledger.with_name(ledger.name + ".head")
        self._lock = ledger.with_name(ledger.name + ".lock")
        self._lock_fd: int | None = None
        self._verified: dict[bytes, Anchor] = {}

    @contextmanager
    def locked(self, patience: float) -> Iterator[None]:
        """Hold the writers' lock, which ends with the process that holds it.

        SQLite's own lock ends at COMMIT; this one also covers the anchor, so that anchors are
        written in the order of the commits. LedgerError after ``patience`` seconds of waiting.
        """
        if self._lock_fd is None:
            self._lock_fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LedgerError(
                        f"another process has been writing for {patience:g} s ({self._lock})"
                    ) from None
                time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the lock file."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def keep_key(self, signer: Signer, anchor: Anchor) -> None:
        """Write a new ledger's first anchor and its key.

        The key comes last: where a key exists, an anchor and a database must exist as well.
        """
        replace_durably(self.head, 2 * _slot(anchor, signer))
        sync_folder(self.head.parent)
        replace_durably(self.key, signer.to_pem())
        sync_folder(self.key.parent)

    def was_used(self) -> bool:
        """Whether the anchor is one of a ledger with entries; its signature is not checked."""
        if not self.head.exists():
            return False
        content = self.head.read_bytes()
        firsts = [content[start:].split(maxsplit=1)[:1] for start in (0, _SLOT_BYTES)]
        return any(first not in ([], [b"0"]) for first in firsts)

    def read_key(self) -> Signer:
        """The device's key; LedgerError when it is not one."""
        content = self.key.read_bytes()
        if _KEY_OF_FORMAT_1.fullmatch(content):
            raise LedgerError(
                "it was begun by an earlier version, without signatures; with the device stopped, "
                "`murmur ledger upgrade` verifies all of it and signs it"
            )
        try:
            return Signer.from_pem(content)
        except (ValueError, TypeError):
            raise LedgerError(f"the key file {self.key} does not hold a key") from None

    def write_anchor(self, anchor: Anchor, signer: Signer) -> None:
        """Put ``anchor`` on disk in place of the older of the two that the file holds.

        The newer one stays until the next time, so that a power cut in the middle leaves one.
        """
        kept = [found.position if found else -1 for found in self._slots(signer)]
        slot = _slot(anchor, signer)
        descriptor = os.open(self.head, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, slot, _SLOT_BYTES * kept.index(min(kept)))
            _sync_data(descriptor)
            self._verified[slot] = anchor
        finally:
            os.close(descriptor)

    def read_anchor(self, signer: Signer) -> tuple[Anchor, bool]:
        """The newest anchor, and whether the other one is damaged.

        LedgerError if neither can be read.
        """
        slots = self._slots(signer)
        anchors = [found for found in slots if found is not None]
        if not anchors:
            raise LedgerError(f"the anchor {self.head} is damaged, or belongs to another key")
        return max(anchors, key=lambda anchor: anchor.position), len(anchors) < len(slots)

    def _slots(self, signer: Signer) -> list[Anchor | None]:
        """Both anchors in the file; None for one that is damaged or not signed by this device."""
        try:
            content = self.head.read_bytes()
        except FileNotFoundError:
            raise LedgerError(f"the anchor {self.head} is missing") from None
        slots = [content[start : start + _SLOT_BYTES] for start in (0, _SLOT_BYTES)]
        found = [self._verified.get(slot) or _anchor(slot, signer) for slot in slots]
        # Checking a signature takes longer than all the rest of a charge.
        self._verified = {slot: anchor for slot, anchor in zip(slots, found, strict=True) if anchor}
        return found


def _slot(anchor: Anchor, signer: Signer) -> bytes:
    text = f"{anchor.position} {anchor.seal.hex()}"
    line = f"{text} {signer.sign('anchor', text).hex()}"
    return line.encode().ljust(_SLOT_BYTES - 1) + b"\n"


def _anchor(slot: bytes, signer: Signer) -> Anchor | None:
    try:
        text, _, seal = slot.decode("ascii").strip().rpartition(" ")
        position, last = text.split()
        if signer.holds("anchor", text, bytes.fromhex(seal)):
            return Anchor(int(position), bytes.fromhex(last))
    except ValueError:
        pass
    return None


def sync_folder(folder: Path) -> None:
    """Put what was created, renamed or removed in ``folder`` on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
