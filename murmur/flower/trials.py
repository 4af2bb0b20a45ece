"""Folders of trials: clients without an owner's folder, as in a simulation.

All lie on this machine, readable by one user. What a trial notes there for its researcher never
travels.
"""

import math
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_TRIAL_SECONDS = 24 * 3600.0
_LENGTH = "length"  # the file with the L2 norm of the last change before clipping


def _root() -> Path:
    return Path(tempfile.gettempdir()) / f"murmur-trials-{os.getuid()}"


def folder_of(run: int, node: int) -> Path:
    """Where a client without an owner's folder keeps a run's state, readable by its user only.

    Under the machine's folder for temporary files, a folder for each run and node: nothing that a
    trial spends counts in another one. The first one of a run removes those of old runs.
    PermissionError where somebody else has made it, or can read it.
    """
    root = _root()
    root.mkdir(mode=0o700, exist_ok=True)
    about = root.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise PermissionError(f"{root}: is not this user's own folder; remove it")
    folder = root / f"run-{run}" / str(node)
    if not folder.parent.exists():
        _forget_trials(root)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _forget_trials(root: Path) -> None:
    """Remove the folders of runs that have asked nothing for a day; nobody says when one ends."""
    for run in root.iterdir():
        with suppress(OSError):  # another process removes it
            asked = max(folder.stat().st_mtime for folder in (run, *run.iterdir()))
            if asked < time.time() - _TRIAL_SECONDS:
                shutil.rmtree(run)


def note_length(folder: Path, length: float) -> None:
    """Writes how long a client's change was before clipping into its own ``folder``."""
    (folder / _LENGTH).write_text(repr(length))


def lengths_of(run: int) -> list[float]:
    """Returns the lengths that trials of a run have noted; empty where none is on this machine."""
    files = sorted((_root() / f"run-{run}").glob(f"*/{_LENGTH}"))
    lengths = [float(path.read_text() or "nan") for path in files]
    return [length for length in lengths if math.isfinite(length)]
