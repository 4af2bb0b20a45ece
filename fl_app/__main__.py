"""The `murmur` command, also ``python -m fl_app``.

Ctrl-C ends it in a sentence at any time: importing Hydra and PyTorch takes seconds, in which Python
would answer with a traceback.
"""

import atexit
import gc
import os
import signal
import sys


def main() -> int:
    """Import the command, and run it.

    Returns:
        The exit status.
    """
    gc.disable()  # until ``cli`` has imported what it needs
    statuses: list[int] = []
    atexit.register(_leave, statuses)  # as the first, so that it is called last
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where it is ignored
    if ours:
        signal.signal(signal.SIGINT, _end)
    from fl_app import cli
    from murmur.learning.process import take_over

    take_over()
    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    status = cli.main()
    statuses.append(status)
    return status


def _leave(statuses: list[int]) -> None:
    """End without Python's own end, which takes apart Ray and PyTorch for seconds.

    Everything else that wanted to know of the end has been called by now.

    Args:
        statuses: the exit status; empty where the command ended otherwise, which Python sees to.
    """
    if statuses:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(statuses[0])


def _end(*_: object) -> None:
    """End at once, with the status of an interrupted command; a signal handler."""
    os.write(2, b"murmur: interrupted\n")
    os._exit(130)  # nothing was started yet


if __name__ == "__main__":
    sys.exit(main())
