"""The table at the end of a sweep: what differed between the jobs, and how each ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from fl_app.progress import show_epsilon

if TYPE_CHECKING:
    from fl_app.cli import Job

COLUMNS = ("accuracy, last 5", "ε claimed", "ε proven", "bytes up", "seconds")


def sweep_rows(jobs: Sequence[Job]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table: the overrides that differ, then the figures."""
    settings = [dict(word.split("=", 1) for word in job.overrides if "=" in word) for job in jobs]
    keys = [
        key
        for key in dict.fromkeys(key for job in settings for key in job)
        if len({job.get(key) for job in settings}) > 1
    ]
    rows = []
    for job, values in zip(jobs, settings, strict=True):
        metrics = job.folder.metrics() if job.folder is not None else None
        rows.append([values.get(key, "") for key in keys] + _figures(metrics))
    return [*keys, *COLUMNS], rows


def _figures(metrics: dict | None) -> list[str]:
    if metrics is None:
        return ["failed", *[""] * (len(COLUMNS) - 1)]
    accuracy = metrics["accuracy_last_5"]
    return [
        "" if accuracy is None else f"{accuracy:.4f}",
        show_epsilon(metrics["epsilon_claimed"]),
        show_epsilon(metrics["epsilon_proven"]),
        f"{metrics['bytes_up']:,}",
        f"{metrics['seconds']:.1f}",
    ]


def show_sweep(jobs: Sequence[Job]) -> None:
    """Print the table, and write it as Markdown beside the runs."""
    head, rows = sweep_rows(jobs)
    table = Table(*head, title="Sweep")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    folders = [job.folder.path for job in jobs if job.folder is not None]
    if folders:
        path = folders[0].parent / f"sweep-{folders[0].name}.md"
        lines = [head, ["---"] * len(head), *rows]
        path.write_text("".join(f"| {' | '.join(line)} |\n" for line in lines), encoding="utf-8")
        console.print(f"sweep: {path}", markup=False, soft_wrap=True)
