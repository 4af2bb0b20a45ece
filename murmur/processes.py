"""Processes that end with the one that started them.

What survives a SIGKILL needs Linux's prctl(2); elsewhere only the children that are still known are
ended.
"""

import contextlib
import ctypes
import signal
import sys
from collections.abc import Callable

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Lets the kernel send signal ``number`` to this process when its parent ends.

    "Parent" is the thread that started it. A parent that has ended before this call is not
    noticed: by then ``os.getppid`` names another process.
    """
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Makes this process the parent of what a descendant leaves behind, so that it can be ended.

    Without this an orphan goes to the system's first process, and ``end_children`` misses it. Only
    Linux knows it; elsewhere nothing happens.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_children(
    ours: Callable[[psutil.Process], bool] = lambda child: True, at_once: bool = False
) -> None:
    """Ends this process's descendants, and kills those that have not ended after three seconds.

    Orphans come to this process one after the other, so it looks until there are none.

    Args:
        ours: tells which descendants to end; all of them by default.
        at_once: kill them without asking, where they have nothing to put in order.
    """
    signals = ["kill", "kill", "kill"]
    if not at_once:
        signals.insert(0, "terminate")
    for send in signals:
        family = [child for child in psutil.Process().children(recursive=True) if ours(child)]
        if not family:
            return
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                getattr(child, send)()
        psutil.wait_procs(family, 3.0)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
