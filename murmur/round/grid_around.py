"""A Grid that does one thing otherwise than the one that it holds."""

from __future__ import annotations

from typing import Any

from flwr.serverapp import Grid


class GridAround:
    """``grid``, but for what a subclass says."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)
