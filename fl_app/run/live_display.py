"""A live display: a bar that looks again and again at files that somebody else writes.

Base of ``fl_app.run.progress.LiveProgress`` and ``fl_app.sweep.progress.SweepProgress``.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from rich.progress import Progress

POLL_SECONDS = 0.2


class LiveDisplay(ABC):
    """Keeps ``bar`` up to date in a thread of its own, until the context ends.

    The thread calls ``_show`` every ``POLL_SECONDS``; when the context ends it is called once more,
    in the caller's thread, so that the last rows are shown. It is never called by two at a time.

    Args:
        bar: of rich; started and stopped with the context.
    """

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    @abstractmethod
    def _show(self) -> None:
        """Look, and show what is new."""

    def __enter__(self) -> Self:
        self._bar.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
