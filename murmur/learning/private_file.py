"""Files and folders that only their owner may read, whatever the umask."""

from __future__ import annotations

import os
from pathlib import Path


def private(path: str, flags: int) -> int:
    """An ``opener`` for ``open``; a file that was there and wider is narrowed."""
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def private_folder(path: Path) -> None:
    """Make the folder ``path``, with those above it, where they are not there.

    One that is there is left as it is: it may be shared on purpose, and the files in it are not.
    """
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
