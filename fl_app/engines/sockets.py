"""Where the sockets of worker processes lie: a socket's path has room for about a hundred bytes."""

from __future__ import annotations

import multiprocessing.util
import os
import tempfile

from fl_app.config.errors import ConfigError

# Bytes that are left for the folder: Ray's longest path below it has 87, macOS allows 103.
LONGEST = 16
_SHORT = "/tmp"


def socket_folder() -> str:
    """The folder for temporary files, or /tmp where its name leaves no room; ConfigError if none.

    Only sockets and what belongs to them move; TMPDIR stays what it is for everything else.
    """
    own = tempfile.gettempdir()
    for folder in (own, _SHORT):
        if len(os.fsencode(folder)) <= LONGEST and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise ConfigError(
        f"TMPDIR={own}: leaves no room for the names of sockets, and {_SHORT} cannot be written; "
        f"set it to a folder whose path has at most {LONGEST} characters"
    )


def shorten_multiprocessing() -> None:
    """Let the sockets of ``multiprocessing`` in this process lie in ``socket_folder``."""
    before = tempfile.tempdir
    tempfile.tempdir = socket_folder()
    try:
        multiprocessing.util.get_temp_dir()  # chosen once, at its first use
    finally:
        tempfile.tempdir = before
