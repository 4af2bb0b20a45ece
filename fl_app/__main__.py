"""The `murmur` command, also ``python -m fl_app``.

Ctrl-C ends it in a sentence at any time: importing Hydra and PyTorch takes seconds, in which Python
would answer with a traceback.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Import the command, and run it.

    Returns:
        The exit status.
    """
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where it is ignored
    if ours:
        signal.signal(signal.SIGINT, _end)
    from fl_app import cli

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return cli.main()


def _end(*_: object) -> None:
    """End at once, with the status of an interrupted command; a signal handler."""
    os.write(2, b"murmur: interrupted\n")
    os._exit(130)  # nothing was started yet


if __name__ == "__main__":
    sys.exit(main())
