"""Where the command writes its tables: as wide as the terminal, or as wide as they are."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

OPTION = "--wide"
_UNCUT = 10_000
_wide = False


def take_option(arguments: list[str]) -> list[str]:
    """Take ``--wide`` out of a command, which keeps the terminal from cutting tables.

    All consoles that this process makes afterwards heed it.

    Args:
        arguments: as typed.

    Returns:
        The others.
    """
    global _wide
    _wide = OPTION in arguments
    return [word for word in arguments if word != OPTION]


def replace_unknown_characters() -> None:
    """Let a terminal that is not UTF-8 show a question mark for what it has no sign for."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def console(highlight: bool = True) -> Console:
    """A console that cuts no table where it is piped into a file or another program.

    Square brackets and colons are no markup: a user's values are shown as they are.

    Args:
        highlight: whether figures and names have colours.
    """
    from rich.console import Console  # `murmur --help` needs no library

    width = None
    if _wide or not sys.stdout.isatty():
        width = _UNCUT
    return Console(width=width, highlight=highlight, markup=False, emoji=False)
