"""What stands on a terminal: tables as wide as it is, or as they are, and live displays.

``murmur --help`` imports this and no library.
"""

import io
import sys
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console

OPTION = "--wide"
_UNCUT = 10_000
POLL_SECONDS = 0.2  # between two looks of a live display
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


def console(highlight: bool = True) -> "Console":
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


class LiveDisplay(ABC):
    """A bar that looks again and again at files that somebody else writes.

    Keeps it up to date in a thread of its own, until the context ends. On a terminal it has a line
    for each task: ``heading``, how many of how many, the task's description, the time left.

    The thread calls ``_show`` every ``POLL_SECONDS``; when the context ends it is called once more,
    in the caller's thread, so that the last rows are shown. It is never called by two at a time.

    Args:
        heading: begins each line; ``{task.fields[NAME]}`` stands for a task's own.
        console: where it is shown; without a terminal only lines above the bar are.
    """

    def __init__(self, heading: str, console: "Console") -> None:
        from rich import progress  # `murmur --help` needs no library

        self._bar = progress.Progress(
            progress.TextColumn(heading),
            progress.MofNCompleteColumn(),
            progress.BarColumn(),
            progress.TextColumn("{task.description}", markup=False),
            progress.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    @abstractmethod
    def _show(self) -> None:
        """Look, and show what is new."""

    def __enter__(self) -> Self:
        self._bar.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._show()
        self._bar.stop()

    def _refresh(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            self._show()

    def _print(self, text: str, style: str | None = None) -> None:
        """Print a line above the bar; brackets in ``text``, a stranger's word, are no markup."""
        self._bar.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
