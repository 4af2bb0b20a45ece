"""What stands on a terminal: tables as wide as it is, or as they are, and live displays.

``murmur --help`` imports this and no library.
"""

import contextlib
import io
import os
import sys
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console

OPTION = "--wide"
_UNCUT = 10_000
POLL_SECONDS = 0.2  # between two looks of a live display
WIDE = 120  # letters from which on a live display has room for sentences
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


class _Lossy(io.FileIO):
    """A descriptor whose output is dropped once it cannot be written: the work goes on.

    Of a full disk the first loss is told on standard error; who closes a pipe knows it.
    """

    _lost = False

    def write(self, content: Any) -> int:
        """Write what there is room for, and take the rest as written."""
        if self._lost:
            return len(content)
        try:
            return super().write(content) or 0
        except BrokenPipeError:
            self._lost = True
        except OSError as error:
            self._lost = True
            with contextlib.suppress(OSError):
                said = f"murmur: standard output cannot be written ({error.strerror}); it is lost\n"
                os.write(2, said.encode())
        return len(content)


def keep_going() -> None:
    """Let a command end as usual whatever becomes of its output.

    It may be closed or fill its disk, be closed from the beginning, or go to a terminal that is not
    UTF-8, which shows a question mark for what it has no sign for.
    """
    for number in (0, 1, 2):  # a file that is opened in their place would get what is printed
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None or (isinstance(stream, io.TextIOWrapper) and _is_file(stream, number)):
            encoding = "utf-8"
            if stream is not None:
                stream.flush()
                encoding = stream.encoding
            raw = _Lossy(number, "w", closefd=False)
            line = raw.isatty() or number == 2
            buffered = io.BufferedWriter(raw)
            setattr(sys, name, io.TextIOWrapper(buffered, encoding, "replace", None, line))


def _is_file(stream: io.TextIOWrapper, number: int) -> bool:
    """Tells whether ``stream`` is that of the process, and not put in its place by somebody."""
    try:
        return stream.fileno() == number
    except OSError:
        return False


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
        from rich.table import Column

        words = Column(no_wrap=True, overflow="ellipsis")
        self._bar = progress.Progress(
            progress.TextColumn(heading),
            progress.MofNCompleteColumn(),
            progress.BarColumn(40 if console.width >= WIDE else 10),
            progress.TextColumn("{task.description}", markup=False, table_column=words),
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
