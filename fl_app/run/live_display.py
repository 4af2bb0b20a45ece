"""A live display: a bar that looks again and again at files that somebody else writes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from rich.progress import Progress

POLL_SECONDS = 0.2


class LiveDisplay(ABC):
    """Keeps ``bar`` up to date in a thread of its own, until the context ends."""

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
        self._bar.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
