"""Where a run's rows go beside its own folder, whose JSON lines remain the truth.

A tracker works in the server's process. ``begin`` brings it up to date with the rows that the run
has kept, so a resumed run shows each round once, whatever was lost in a crash.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

Row = Mapping[str, Any]


class Tracker(Protocol):
    """What a run tells; ``conf/tracking`` names the classes. The constructor refuses early."""

    def begin(self, folder: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """The run in ``folder`` starts, or goes on after ``rows``."""

    def row(self, row: Row) -> None:
        """A round has ended."""

    def end(self, metrics: Row) -> None:
        """The run has ended with these figures."""


class NoTracking:
    """Nothing beside the run's folder."""

    def begin(self, folder: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> None:
        """Nothing."""

    def row(self, row: Row) -> None:
        """Nothing."""

    def end(self, metrics: Row) -> None:
        """Nothing."""


def scalars(row: Row) -> dict[str, float]:
    """The row's numbers by name; failures as a count, nothing that is not finite."""
    found = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            value = len(value)
        if name != "round" and isinstance(value, int | float) and math.isfinite(value):
            found[name] = float(value)
    return found


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings by dotted key, as text."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = str(value)
    return found
