"""What a person sees of a sweep: its jobs while they run, and the tables when they have ended.

Both are read from the jobs' folders alone, so they are the same wherever the jobs run.

In the tables jobs are grouped by their promise (what is hidden of whom, from whom, at which δ):
only ε of one promise can be compared. ε is what the statement puts first, against the adversary
that a job's budget is meant for, for the whole run. Bytes are what clients sent in all rounds.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Self

from rich.console import Console
from rich.table import Table

from fl_app.console import LiveDisplay
from fl_app.run.intervals import INTERVAL, spread, with_interval
from fl_app.run.progress import describe, format_epsilon, short_name, shown_path
from fl_app.run.results import read_rows
from fl_app.run.scores import compared_score, label_of
from fl_app.sweep.sweep import Job, Sweep, SweepFolder, is_hydra
from murmur.format import pluralize
from murmur.privacy.statement import Statement
from murmur.privacy.statement_text import promise

NOT_FINISHED = "Not finished"
AT_CHANCE = "learned nothing that can be seen"
VOID = "privacy void"
ACCURACY = "accuracy, last 5 rounds"
R_SQUARED = "R²"
EPSILON = "ε spent"
CLAIMED = "ε that the paper claims"
_COLUMNS = {"accuracy": ACCURACY, "r2": R_SQUARED}
_FORMATS = {ACCURACY: ".4f", R_SQUARED: ".4f", "bytes up": ",", "seconds": ".1f"}
FIGURES = (*_FORMATS, EPSILON, CLAIMED, "state")
Record = dict[str, Any]
Row = dict[str, str]


class SweepProgress(LiveDisplay):
    """Shows the jobs of ``sweep`` as they end, until the context ends.

    On a terminal a second bar shows the rounds of the job that moved last; elsewhere each finished
    job is a line.
    Rate and time left count the jobs of this command only, not those that were finished before. A
    search has no known end, so it has no time left either.

    Args:
        sweep: begun already, since its folder is read here.
        console: where it is shown.
        trials: of a search, where it is known how many they are.
    """

    def __init__(self, sweep: Sweep, console: Console, trials: int | None = None) -> None:
        self.trials = trials
        self.sweep, self.folder, self.console = sweep, sweep.folder, console
        self._ended = {job.key for job in self.folder.finished(self._jobs())}
        self._before = len(self._ended)  # finished before this command
        super().__init__("{task.fields[what]}", console)
        total = len(sweep.jobs) - self._before if sweep.jobs else None
        self._all = self._bar.add_task("", total=total, what="jobs")
        self._one = self._bar.add_task("", total=None, what="round")

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
                score, value = compared_score(metrics)
                line = "" if value is None else f"{label_of(score)} {value:.3f}"
            left = f", {self._left(done)} left" if self.sweep.jobs else ""
            done_of = f"job {len(self._ended)}/{len(jobs)}"
            if self.sweep.search is not None:
                done_of = f"trial {len(self._ended)}"
                done_of += "" if self.trials is None else f" of {self.trials}"
            self._print(f"{done_of}  {names[job.key]}  {line}  ({pace}{left})")
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
        if rows := read_rows(self.folder.path / job.key / "rounds.jsonl", -1):
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


def sweep_rows(folder: SweepFolder) -> dict[str, list[Row]]:
    """The tables' rows: promise -> one for each job, then one for each setting with several seeds.

    A row is heading -> text, with the same headings in all rows of one promise; what is empty in
    all of them is left out.

    Args:
        folder: of the sweep; every job that it knows has a row.
    """
    jobs = folder.jobs()
    keys, values = differing(jobs)
    names = ["budget " * (key == "privacy.epsilon") + short_name(key, keys) for key in keys]
    grouped: dict[str, list[Record]] = {}
    for job, own in zip(jobs, values, strict=True):
        words, figures = _figures(folder, job)
        record = {**dict(zip(names, own, strict=True)), **figures}
        grouped.setdefault(words, []).append(record)
    tables = {}
    for words in sorted(grouped, key=lambda words: words == NOT_FINISHED):
        members = grouped[words]
        tables[words] = _rows([*members, *_over_seeds(members)])
    return tables


def show_sweep(folder: SweepFolder, console: Console) -> None:
    """Print the tables, and write them as ``sweep.md``; also where the sweep was interrupted.

    Args:
        folder: of the sweep.
        console: where they are printed. Why a job failed is in the file only.
    """
    text = ""
    for words, rows in sweep_rows(folder).items():
        table = Table(*rows[0])
        for row in rows:
            # Why a job failed was printed when it did, and is in sweep.md.
            cells = ["failed" if c.startswith("failed: ") else c for c in row.values()]
            table.add_row(*cells)
        console.print(words, style="bold", soft_wrap=True)
        console.print(table)
        text += f"## {words}\n\n" + "".join(_markdown(rows)) + "\n"
    is_repeated = "±" in text or "[" in text
    text = f"{INTERVAL}.\n\n" * is_repeated + text
    (folder.path / "sweep.md").write_text(text, encoding="utf-8")
    path = shown_path(folder.path)
    if is_repeated:
        console.print(INTERVAL, soft_wrap=True, markup=False)
    console.print("ε is for the whole run; compare it within one table only", soft_wrap=True)
    console.print(f"sweep: {path}", soft_wrap=True)
    console.print(f"next:  murmur report {path}", soft_wrap=True)


def _markdown(rows: Sequence[Row]) -> Iterable[str]:
    """A table's lines."""
    head = list(rows[0])
    for cells in (head, ["---"] * len(head), *(list(row.values()) for row in rows)):
        yield f"| {' | '.join(cell.replace('|', '¦') for cell in cells)} |\n"


def _figures(folder: SweepFolder, job: Job) -> tuple[str, Record]:
    """Returns a job's protection, its δ and its figures, in words.

    The words are ``NOT_FINISHED`` before they are known.
    """
    metrics = folder.metrics(job)
    saved = folder.statement(job)
    if metrics is None or saved is None:
        error = folder.error(job)
        return NOT_FINISHED, {"state": "not finished" if error is None else f"failed: {error}"}
    statement = Statement.from_dict(saved)
    states = []  # what a reader of the figures must know
    if statement.doubts:
        states.append(VOID)
    if metrics.get("at_chance"):
        states.append(AT_CHANCE)
    first = statement.guarantees[0]
    score, value = compared_score(metrics)
    said = promise(statement.unit, statement.adjacency, first.threat, statement.delta)
    return said, {
        _COLUMNS[score]: value,
        EPSILON: None if statement.doubts else first.stated,
        CLAIMED: first.claimed_total,
        "bytes up": metrics["bytes_up"],
        "seconds": metrics["seconds"],
        "state": ", ".join(states) or None,
    }


def _scored(job: Record) -> str | None:
    """The column of ``job`` that has its score; None: it has none."""
    return next((name for name in _COLUMNS.values() if job.get(name) is not None), None)


def _over_seeds(jobs: Sequence[Record]) -> list[Record]:
    """A record for each setting with several seeds: the mean and its interval, the largest ε."""
    alike: dict[tuple[Any, ...], list[Record]] = {}
    for job in jobs:
        if "seed" in job and _scored(job) is not None:
            setting = tuple((k, v) for k, v in job.items() if k not in ("seed", *FIGURES))
            alike.setdefault(setting, []).append(job)
    found = []
    for setting, same in alike.items():
        if len(same) > 1:
            name = _scored(same[0])
            assert name is not None
            scores = [job[name] for job in same]
            record = {**dict(setting), "seed": pluralize(len(same), "seed")}
            record[name] = with_interval(spread(scores, share=name == ACCURACY))
            for name in (EPSILON, CLAIMED):
                record[name] = max(
                    (job[name] for job in same if job[name] is not None), default=None
                )
            if any(VOID in (job["state"] or "") for job in same):
                record["state"] = VOID
            found.append(record)
    return found


def _rows(records: Sequence[Record]) -> list[Row]:
    """The records as texts with the same headings, less those that are empty in all."""
    names = dict.fromkeys(name for record in records for name in record)
    rows = [{name: _cell(name, record.get(name)) for name in names} for record in records]
    filled = [name for name in names if any(row[name] for row in rows)]
    return [{name: row[name] for name in filled} for row in rows]


def _cell(name: str, value: Any) -> str:
    """A value for people; "" for none."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if name in (EPSILON, CLAIMED):
        return format_epsilon(value)
    return f"{value:{_FORMATS[name]}}"
