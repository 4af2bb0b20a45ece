"""Processes that a run starts on this machine: they end with it, and their sockets find room.

What survives a SIGKILL rests on Linux (`prctl(2)`); elsewhere only the children that are still
known are ended.
"""

import contextlib
import ctypes
import os
import signal
import sys
import tempfile
from collections.abc import Callable

import psutil

from fl_app.config.errors import ConfigError

_PDEATHSIG = 1  # the options of prctl(2)
_SUBREAPER = 36
# Bytes that a socket's folder may have: Ray's longest path below it has 87, macOS allows 103.
LONGEST = 16
_SHORT = "/tmp"


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send signal ``number`` to this process when its parent ends.

    "Parent" is the thread that started it. A parent that has ended before this call is not
    noticed: ``orphaned`` is for that.
    """
    _prctl(_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of whatever a descendant leaves behind, so that it can be ended.

    Without this an orphan goes to the system's first process, and ``end_children`` misses it. Only
    Linux knows it; elsewhere nothing happens.
    """
    _prctl(_SUBREAPER, 1)


def orphaned(parent: int) -> bool:
    """Whether the process ``parent`` is this one's parent no longer, since it has ended.

    For what ``die_with_parent`` misses: a parent that had ended before the call.
    """
    return os.getppid() != parent


def end_children(
    ours: Callable[[psutil.Process], bool] = lambda child: True, at_once: bool = False
) -> None:
    """End this process's descendants, and kill those that have not ended after three seconds.

    Orphans come to this process one after the other, so it looks until there are none.

    Args:
        ours: which descendants to end; all of them by default.
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


def socket_folder() -> str:
    """The folder for temporary files, or /tmp where its name leaves a socket's path no room.

    Only sockets and what belongs to them move; TMPDIR stays what it is for everything else.

    Raises:
        ConfigError: neither folder will do.
    """
    own = tempfile.gettempdir()
    for folder in (own, _SHORT):
        if len(os.fsencode(folder)) <= LONGEST and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise ConfigError(
        f"TMPDIR={own}: leaves no room for the names of sockets, and {_SHORT} cannot be written; "
        f"set it to a folder whose path has at most {LONGEST} characters"
    )


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
