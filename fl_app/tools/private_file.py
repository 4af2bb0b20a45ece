"""Files that only their owner may read: shares of data, and who took part in what."""

from __future__ import annotations

import os


def private(path: str, flags: int) -> int:
    """An ``opener`` for ``open``; a file that was there and wider is narrowed."""
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor
