"""The small files beside the database: the device's key, the anchor and the writers' lock.

The anchor says how many entries there were and what the last one's seal was, signed, after each
commit. A database that ends before its anchor has lost entries; one that goes beyond it was killed
between the commit and the anchor. The file has two slots, and each new anchor replaces the older of
the two, so that a power cut in the middle of writing leaves the other.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from murmur.files import replace_file
from murmur.privacy.ledger.chain import LedgerSigner
from murmur.privacy.ledger.entry import LedgerError
from murmur.privacy.signing import Signer

_POLL_SECONDS = 0.0005
_SLOT_BYTES = 4096  # far enough apart that no disk writes both slots at once
_SLOTS = (0, _SLOT_BYTES)
_sync_data = getattr(os, "fdatasync", os.fsync)


@dataclass(frozen=True)
class Anchor:
    """How far the ledger had come, and the seal of its last entry then."""

    position: int
    seal: bytes


class KeyAndAnchor:
    """The files ``<ledger>.key``, ``<ledger>.head`` and ``<ledger>.lock``.

    ``key``: the device's private key, mode 600. ``head``: the anchor's two slots. The lock holds
    nothing; it is what writers wait for.
    """

    def __init__(self, ledger: Path) -> None:
        self.key = ledger.with_name(ledger.name + ".key")
        self.head = ledger.with_name(ledger.name + ".head")
        self._lock = ledger.with_name(ledger.name + ".lock")
        self._verified: dict[bytes, Anchor] = {}

    @contextmanager
    def locked(self, patience: float) -> Iterator[None]:
        """Hold the writers' lock, which ends with the process that holds it.

        SQLite's own lock ends at COMMIT; this one also covers the anchor, so that anchors are
        written in the order of the commits. LedgerError after ``patience`` seconds of waiting.
        """
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + patience
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise LedgerError(
                            f"another process has been writing for {patience:g} s ({self._lock})"
                        ) from None
                    time.sleep(_POLL_SECONDS)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def keep_key(self, signer: Signer, anchor: Anchor) -> None:
        """Write a new ledger's first anchor and its key.

        The key comes last: where a key exists, an anchor and a database must exist as well.
        """
        replace_file(self.head, 2 * _slot(anchor, signer))
        replace_file(self.key, signer.to_pem())

    def was_used(self) -> bool:
        """True if the anchor is one of a ledger with entries; its signature is not checked.

        Asked where the key is missing, when a ledger could otherwise be begun anew at zero.
        """
        if not self.head.exists():
            return False
        content = self.head.read_bytes()
        firsts = [content[start:].split(maxsplit=1)[:1] for start in _SLOTS]
        return any(first not in ([], [b"0"]) for first in firsts)

    def read_key(self) -> Signer:
        """The device's key; LedgerError when it is not one."""
        try:
            return LedgerSigner.from_pem(self.key.read_bytes())
        except (ValueError, TypeError):
            raise LedgerError(f"the key file {self.key} does not hold a key") from None

    def write_anchor(self, anchor: Anchor, signer: Signer) -> None:
        """Put ``anchor`` on disk in place of the older of the two that the file holds."""
        kept = [-1 if found is None else found.position for found in self._slots(signer)]
        slot = _slot(anchor, signer)
        descriptor = os.open(self.head, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, slot, _SLOTS[kept.index(min(kept))])
            _sync_data(descriptor)
            self._verified[slot] = anchor
        finally:
            os.close(descriptor)

    def read_anchor(self, signer: Signer) -> tuple[Anchor, bool]:
        """The newest anchor, and whether the other one is damaged.

        LedgerError if the file is missing or neither anchor can be read.
        """
        slots = self._slots(signer)
        anchors = [found for found in slots if found is not None]
        if not anchors:
            raise LedgerError(f"the anchor {self.head} is damaged, or belongs to another key")
        return max(anchors, key=lambda anchor: anchor.position), len(anchors) < len(slots)

    def _slots(self, signer: Signer) -> list[Anchor | None]:
        """Both anchors in the file; None for one that is damaged or not signed by this device.

        LedgerError where the file is missing. Slots that were verified before are not again.
        """
        try:
            content = self.head.read_bytes()
        except FileNotFoundError:
            raise LedgerError(f"the anchor {self.head} is missing") from None
        slots = [content[start : start + _SLOT_BYTES] for start in _SLOTS]
        found = [self._verified.get(slot) or _anchor(slot, signer) for slot in slots]
        # Checking a signature takes longer than all the rest of a charge.
        self._verified = {slot: anchor for slot, anchor in zip(slots, found, strict=True) if anchor}
        return found


def _slot(anchor: Anchor, signer: Signer) -> bytes:
    """``anchor`` as the file holds it: position, seal and signature on a padded line."""
    text = f"{anchor.position} {anchor.seal.hex()}"
    line = f"{text} {signer.sign('anchor', text).hex()}"
    return line.encode().ljust(_SLOT_BYTES - 1) + b"\n"


def _anchor(slot: bytes, signer: Signer) -> Anchor | None:
    """Content of an anchor's slot, if this device has signed it; else None."""
    try:
        text, _, signature = slot.decode("ascii").strip().rpartition(" ")
        position, last = text.split()
        if signer.is_valid("anchor", text, bytes.fromhex(signature)):
            return Anchor(int(position), bytes.fromhex(last))
    except ValueError:
        pass
    return None
