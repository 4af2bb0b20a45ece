"""Reference results beside what a run found: ``published.yaml`` matched by settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fl_app.report import series
from fl_app.report.reading import number
from fl_app.report.settings import Setting, flat

_PUBLISHED = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True)
class Comparison:
    """A reference result and the settings that it may be compared with.

    ``kind``: ``paper``, or ``reference`` for an unpublished run of a reference implementation.
    ``accuracy``: after which round. ``differences``: setting's label -> what is not as there.
    """

    name: str
    kind: str
    source: str
    says: str
    accuracy: dict[int, float]
    settings: tuple[str, ...]
    labels: tuple[str, ...]
    differences: dict[str, list[str]]
    rows: tuple[tuple[str, str, str, str], ...]


def comparisons(settings: Sequence[Setting]) -> list[Comparison]:
    """All reference results for any of ``settings``."""
    entries = yaml.safe_load(_PUBLISHED.read_text(encoding="utf-8"))
    found = [_compare(entry, settings) for entry in entries]
    return [comparison for comparison in found if comparison.settings]


def _compare(entry: Mapping[str, Any], settings: Sequence[Setting]) -> Comparison:
    matching = []
    differences: dict[str, list[str]] = {}
    for setting in settings:
        config = flat(setting.runs[0].config)
        if all(_same(config.get(key), value) for key, value in entry["where"].items()):
            matching.append(setting)
            differences[setting.label] = [
                f"{key} is {config.get(key, 'not set')} here and {value} there"
                for key, value in entry.get("detail", {}).items()
                if not _same(config.get(key), value)
            ]
    accuracy = {int(n): float(value) for n, value in entry.get("accuracy", {}).items()}
    claimed = entry.get("epsilon_claimed")
    rows = [row for s in matching for row in _rows(s, accuracy, claimed)]
    return Comparison(
        name=entry["name"],
        kind=entry["kind"],
        source=entry["source"],
        says=entry.get("says", ""),
        accuracy=accuracy,
        settings=tuple(s.key for s in matching),
        labels=tuple(s.label for s in matching),
        differences={label: items for label, items in differences.items() if items},
        rows=tuple(rows),
    )


def _rows(
    setting: Setting, accuracy: Mapping[int, float], claimed: float | None
) -> list[tuple[str, str, str, str]]:
    """(setting, quantity, reference, this run) for all that both sides have."""
    curve = series.over_rounds(setting, "accuracy")
    rows = [
        (setting.label, f"accuracy after round {n}", f"{value:.3f}", f"{curve[n].mean:.3f}")
        for n, value in accuracy.items()
        if n in curve
    ]
    here = series.claimed(setting)
    if claimed is not None and here is not None:
        rows.append((setting.label, "ε claimed for the run", f"{claimed:.4g}", f"{here:.4g}"))
    return rows


def _same(have: str | None, wanted: Any) -> bool:
    if have is None:
        return False
    wanted_number = number(wanted)
    if wanted_number is None:
        return have == str(wanted)
    try:
        return abs(float(have) - wanted_number) <= 1e-9 * max(1.0, abs(wanted_number))
    except ValueError:
        return False
