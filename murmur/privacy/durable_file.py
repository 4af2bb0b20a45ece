"""Files that outlive a kill, readable by their owner only."""

from __future__ import annotations

import os
from pathlib import Path


def replace_durably(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``, whole or not at all; the caller syncs the folder."""
    draft = path.with_name(path.name + ".tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
