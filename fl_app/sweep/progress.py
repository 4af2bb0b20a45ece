"""What a person sees while a sweep goes on: jobs done, their rate, the time left.

It reads the jobs' folders, so it works the same wherever the launcher runs them. On a terminal a
second bar shows the rounds of the job that moved last; elsewhere each finished job is a line.
"""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fl_app.console import LiveDisplay
from fl_app.run.progress import describe
from fl_app.run.results import read_rows
from fl_app.sweep.sweep import Job, Sweep
from fl_app.sweep.show import differing


class SweepProgress(LiveDisplay):
    """Shows the jobs of ``sweep`` as they end, until the context ends.

    Rate and time left count the jobs of this command only, not those that were finished before. A
    search has no known end, so it has no time left either.

    Args:
        sweep: begun already, since its folder is read here.
        console: where it is shown.

    Attributes:
        skipped: keys of the jobs that were finished before this command.
    """

    def __init__(self, sweep: Sweep, console: Console) -> None:
        self.sweep, self.folder, self.console = sweep, sweep.folder, console
        self.skipped = {job.key for job in self.folder.finished(self.folder.jobs())}
        self._before = sum(job.key in self.skipped for job in self._jobs())
        self._ended = {job.key for job in self._jobs()} & self.skipped
        bar = Progress(
            TextColumn("{task.fields[what]}"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        super().__init__(bar)
        total = len(sweep.jobs) - self._before if sweep.jobs else None
        self._all = bar.add_task("", total=total, what="jobs")
        self._one = bar.add_task("", total=None, what="round")

    def __enter__(self) -> Self:
        if self._before:
            self._print(f"{self._before} of {len(self._jobs())} jobs are finished: skipped")
        self._started = time.monotonic()
        return super().__enter__()

    def _jobs(self) -> list[Job]:
        return self.sweep.jobs or self.folder.jobs()

    def _show(self) -> None:
        jobs = self._jobs()
        names = dict(zip([job.key for job in jobs], map(" ".join, _named(jobs)), strict=True))
        open_jobs = [job for job in jobs if job.key not in self._ended]
        for job in open_jobs:
            metrics, error = self.folder.metrics(job), self.folder.error(job)
            if metrics is None and error is None:
                continue
            self._ended.add(job.key)
            done = len(self._ended) - self._before
            pace = f"{60 * done / (time.monotonic() - self._started):.3g} jobs a minute"
            self._bar.update(self._all, completed=done, description=pace)
            if metrics is None:
                line = f"failed: {error}"
            else:
                accuracy = metrics["accuracy_last_5"]
                line = "" if accuracy is None else f"accuracy {accuracy:.3f}"
            left = f", {self._left(done)} left" if self.sweep.jobs else ""
            self._print(
                f"job {len(self._ended)}/{len(jobs)}  {names[job.key]}  {line}  ({pace}{left})"
            )
        if self.console.is_terminal:
            self._show_rounds(open_jobs, names)

    def _show_rounds(self, jobs: list[Job], names: dict[str, str]) -> None:
        moved: list[tuple[float, Job]] = []
        for job in jobs:
            path = self.folder.path / job.key / "rounds.jsonl"
            if path.exists() and job.key not in self._ended:
                moved.append((path.stat().st_mtime, job))
        if not moved:
            return
        job = max(moved, key=lambda pair: pair[0])[1]
        if rows := read_rows(self.folder.path / job.key / "rounds.jsonl"):
            self._bar.update(
                self._one,
                completed=rows[-1]["round"],
                total=self.sweep.rounds.get(job.key),
                description=f"{names[job.key]}  {describe(rows[-1])}",
            )

    def _left(self, done: int) -> str:
        """The time left, as long for each job as it took for the ``done`` so far."""
        remaining = len(self.sweep.jobs) - len(self._ended)
        seconds = (time.monotonic() - self._started) / done * remaining
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _named(jobs: list[Job]) -> list[list[str]]:
    keys, values = differing(jobs)
    return [[f"{k}={v}" for k, v in zip(keys, own, strict=True) if v != ""] for own in values]
