"""The table at the end of a sweep: what differed between the jobs, and how each ended.

ε are those of ``metrics.json``: against the adversary that a job's budget is meant for, for the
whole run. Bytes are what clients sent in all rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console
from rich.table import Table

from fl_app.run.progress import show_epsilon
from fl_app.sweep.sweep import Job, SweepFolder, is_hydra

FIGURES = (
    "accuracy, last 5",
    "ε claimed",
    "ε proven",
    "ε under assumptions",
    "bytes up",
    "seconds",
)


def differing(jobs: Sequence[Job]) -> tuple[list[str], list[list[str]]]:
    """The keys whose values differ between the jobs, and each job's values of them.

    Args:
        jobs: their words are compared, not what is composed from them; those about Hydra are not.

    Returns:
        The keys in the order in which jobs name them; for each job its values in that order, ""
        where it has none.
    """
    settings = [
        dict(w.split("=", 1) for w in job.overrides if "=" in w and not is_hydra(w)) for job in jobs
    ]
    keys = [
        key
        for key in dict.fromkeys(key for job in settings for key in job)
        if len({job.get(key) for job in settings}) > 1
    ]
    return keys, [[job.get(key, "") for key in keys] for job in settings]


def sweep_rows(folder: SweepFolder, skipped: Collection[str]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table, as texts.

    Args:
        folder: of the sweep; every job that it knows has a row.
        skipped: keys of the jobs that were finished before.
    """
    jobs = folder.jobs()
    keys, values = differing(jobs)
    rows = [
        [*own, _state(folder, job, skipped), *_figures(folder, job)]
        for job, own in zip(jobs, values, strict=True)
    ]
    return [*keys, "state", *FIGURES], rows


def show_sweep(folder: SweepFolder, skipped: Collection[str], console: Console) -> None:
    """Print the table, and write it as ``sweep.md``; also where the sweep was interrupted.

    Args:
        folder: of the sweep.
        skipped: keys of the jobs that were finished before.
        console: where it is printed. Why a job failed is in the file only.
    """
    head, rows = sweep_rows(folder, skipped)
    table = Table(*head, title="Sweep")
    for row in rows:
        # Why a job failed was printed when it did, and is in sweep.md.
        table.add_row(*("failed" if cell.startswith("failed: ") else cell for cell in row))
    console.print(table)
    lines = [head, ["---"] * len(head), *rows]
    text = "".join(f"| {' | '.join(c.replace('|', '¦') for c in line)} |\n" for line in lines)
    (folder.path / "sweep.md").write_text(text, encoding="utf-8")
    console.print(f"sweep: {folder.path}", markup=False, soft_wrap=True)


def _state(folder: SweepFolder, job: Job, skipped: Collection[str]) -> str:
    if job.key in skipped:
        return "finished before"
    if folder.metrics(job) is not None:
        return "finished"
    error = folder.error(job)
    return "not finished" if error is None else f"failed: {error}"


def _figures(folder: SweepFolder, job: Job) -> list[str]:
    metrics = folder.metrics(job)
    if metrics is None:
        return [""] * len(FIGURES)
    accuracy = metrics["accuracy_last_5"]
    return [
        "" if accuracy is None else f"{accuracy:.4f}",
        show_epsilon(metrics["epsilon_claimed"]),
        show_epsilon(metrics["epsilon_proven"]),
        show_epsilon(metrics.get("epsilon_assumed")),
        f"{metrics['bytes_up']:,}",
        f"{metrics['seconds']:.1f}",
    ]
