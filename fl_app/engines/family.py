"""Process groups that end together: no process that a run started outlives the run.

``python -P -m fl_app.engines.family PARENT FOLDER COMMAND ...`` runs a command that ends, with all
that it started, when the process PARENT does; FOLDER then goes. What survives a SIGKILL rests on
Linux; elsewhere only the children that are still known are ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import psutil

_PDEATHSIG, _SUBREAPER = 1, 36  # of prctl(2)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send ``number`` to this process when the thread that started it ends."""
    _prctl(_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of whatever a descendant leaves behind, so that it can be ended."""
    _prctl(_SUBREAPER, 1)


def end_children(
    ours: Callable[[psutil.Process], bool] = lambda child: True, *, at_once: bool = False
) -> None:
    """End this process's descendants, or those that are ``ours``; kill those that do not end.

    ``at_once``: kill all of them. Orphans come to this process one after the other, so it looks
    until there are none.
    """
    for send in ("kill" if at_once else "terminate", "kill", "kill", "kill"):
        family = [child for child in psutil.Process().children(recursive=True) if ours(child)]
        if not family:
            return
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                getattr(child, send)()
        psutil.wait_procs(family, 3.0)


def orphaned(parent: int) -> bool:
    """Whether ``parent`` had ended before ``die_with_parent`` could take effect."""
    return os.getppid() != parent


def guard(parent: int, folder: str, command: Sequence[str]) -> None:
    """Run ``command`` until it ends, or ``parent`` does; then nothing of it is left."""
    die_with_parent(signal.SIGTERM)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_once)
    try:
        process = subprocess.Popen(command, preexec_fn=die_with_parent)
        while process.poll() is None and not orphaned(parent):
            time.sleep(0.2)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_children()
        shutil.rmtree(folder, ignore_errors=True)


def _end_once(number: int, _: object) -> None:
    # The threads of a parent that is killed die one by one, and each sends the signal again.
    signal.signal(number, signal.SIG_IGN)
    sys.exit(0)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    guard(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
