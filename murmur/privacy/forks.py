"""Telling a process from its forked children, where process ids do not.

In a new PID namespace (a container) a child may have its parent's own number.
"""

from __future__ import annotations

import os

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def process() -> tuple[int, int]:
    """A value that no fork of this process has; forks by C code are told by their id alone."""
    return _forks, os.getpid()
