"""The runs behind a study: each in this process, each kept as a line of a file.

A study that was stopped goes on where it was: a run that is in its file is not repeated.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_app.engines.inline import InlineEngine
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun


class RunFile:
    """A file of runs, one JSON object a line.

    Raises:
        json.JSONDecodeError: a line is no JSON.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            self.rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def get(
        self, key: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The row with all of ``key``'s values; measured, kept and printed where it is missing."""
        found = next((row for row in self.rows if key.items() <= row.items()), None)
        if found is None:
            found = {**key, **measure()}
            self.rows.append(found)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            print(json.dumps({name: found[name] for name in found if name != "words"}), flush=True)
        return found


def run_once(words: Sequence[str], nodes: int = 1) -> dict[str, Any]:
    """Rows, metrics, guarantees and seconds of the run with the overrides ``words``."""
    with tempfile.TemporaryDirectory() as parent:
        folder = RunFolder(Path(parent) / "run")
        started = time.perf_counter()
        run = ValidatedRun.of([*words, f"run_dir={folder.path}"])
        InlineEngine(workers=1, nodes=nodes).run(run)
        return {
            "rows": folder.rows(),
            "metrics": folder.metrics() or {},
            "guarantees": folder.statement()["guarantees"],
            "seconds": time.perf_counter() - started,
        }


def spread(values: Sequence[float], digits: int = 4) -> str:
    """Mean and, of several, standard deviation."""
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Markdown."""
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
