"""The small files beside the database: the device's key, the anchor and the writers' lock."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from privacy.ledger.entry import LedgerError
from privacy.ledger.history import Sealer

_KEY_BYTES = 32
_POLL_SECONDS = 0.0005


@dataclass(frozen=True)
class Anchor:
    """How far the ledger had come, and the seal of its last entry then."""

    position: int
    seal: bytes


class Sidecar:
    """The files ``<ledger>.key``, ``<ledger>.head`` and ``<ledger>.lock``."""

    def __init__(self, ledger: Path) -> None:
        self.key = ledger.with_name(ledger.name + ".key")
        self.head = ledger.with_name(ledger.name + ".head")
        self._lock = ledger.with_name(ledger.name + ".lock")
        self._lock_fd: int | None = None

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

    def create_key(self, anchor: Anchor) -> Sealer:
        """A new key with its first anchor.

        The key comes last: where a key exists, an anchor and a database must exist as well.
        """
        sealer = Sealer(os.urandom(_KEY_BYTES))
        self.write_anchor(anchor, sealer)
        _replace(self.key, sealer.key.hex().encode() + b"\n")
        _sync_folder(self.key.parent)
        return sealer

    def read_key(self) -> Sealer:
        """The device's key; LedgerError when it is not one."""
        try:
            key = bytes.fromhex(self.key.read_text(encoding="ascii"))
        except ValueError:
            key = b""
        if len(key) != _KEY_BYTES:
            raise LedgerError(f"the key file {self.key} does not hold a key")
        return Sealer(key)

    def write_anchor(self, anchor: Anchor, sealer: Sealer) -> None:
        """Replace the anchor; on disk when this returns or, after a power cut, the one before."""
        text = _anchor_text(anchor)
        line = {"position": anchor.position, "seal": anchor.seal.hex()}
        line["anchor_seal"] = sealer.seal("anchor", text).hex()
        _replace(self.head, json.dumps(line).encode() + b"\n")

    def read_anchor(self, sealer: Sealer | None) -> Anchor:
        """The anchor, its seal checked unless ``sealer`` is None; LedgerError if it is damaged."""
        try:
            line = json.loads(self.head.read_text(encoding="ascii"))
            anchor = Anchor(int(line["position"]), bytes.fromhex(line["seal"]))
            seal = bytes.fromhex(line["anchor_seal"])
        except FileNotFoundError:
            raise LedgerError(f"the anchor {self.head} is missing") from None
        except (ValueError, TypeError, KeyError) as error:
            raise LedgerError(f"the anchor {self.head} is damaged: {error!r}") from error
        if sealer is not None and not sealer.holds("anchor", _anchor_text(anchor), seal):
            raise LedgerError(
                f"the anchor {self.head} was altered, or belongs to another ledger's key"
            )
        return anchor


def _anchor_text(anchor: Anchor) -> str:
    return f"{anchor.position} {anchor.seal.hex()}"


def _replace(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``, whole or not at all, readable by its owner only."""
    draft = path.with_name(path.name + ".tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(draft, path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
