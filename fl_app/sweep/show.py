"""The tables at the end of a sweep: what differed between the jobs, and how each ended.

Jobs are grouped by their promise (who is protected from whom, at which δ): only ε of one promise
can be compared. ε is what the statement puts first, against the adversary that a job's budget is
meant for, for the whole run. Bytes are what clients sent in all rounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from fl_app.report.reading import number
from fl_app.run.progress import short_name, show_epsilon, shown_path
from fl_app.sweep.sweep import Job, SweepFolder, is_hydra
from murmur.common import counted
from murmur.privacy.statement_text import promise

NOT_FINISHED = "Not finished"
AT_CHANCE = "learned nothing that can be seen"
ACCURACY = "accuracy, last 5 rounds"
EPSILON = "ε spent"
CLAIMED = "ε that the paper claims"
_FORMATS = {ACCURACY: ".4f", "bytes up": ",", "seconds": ".1f"}
FIGURES = (*_FORMATS, EPSILON, CLAIMED, "state")
Record = dict[str, Any]
Row = dict[str, str]


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


def promise_of(folder: SweepFolder, job: Job) -> str:
    """Whom a job protects from whom, at which δ, in words; ``NOT_FINISHED`` before it is known."""
    statement = folder.statement(job)
    if statement is None or folder.metrics(job) is None:
        return NOT_FINISHED
    first = statement["guarantees"][0]
    return promise(statement["unit"], first["threat"], statement["delta"])


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
        record = {**dict(zip(names, own, strict=True)), **_figures(folder, job)}
        grouped.setdefault(promise_of(folder, job), []).append(record)
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
    (folder.path / "sweep.md").write_text(text, encoding="utf-8")
    path = shown_path(folder.path)
    console.print("ε is for the whole run; compare it within one table only", soft_wrap=True)
    console.print(f"sweep: {path}", soft_wrap=True)
    console.print(f"next:  murmur report {path}", soft_wrap=True)


def _markdown(rows: Sequence[Row]) -> Iterable[str]:
    """A table's lines."""
    head = list(rows[0])
    for cells in (head, ["---"] * len(head), *(list(row.values()) for row in rows)):
        yield f"| {' | '.join(cell.replace('|', '¦') for cell in cells)} |\n"


def _figures(folder: SweepFolder, job: Job) -> Record:
    """What a job came to."""
    metrics = folder.metrics(job)
    statement = folder.statement(job)
    if metrics is None or statement is None:
        error = folder.error(job)
        return {"state": "not finished" if error is None else f"failed: {error}"}
    first = statement["guarantees"][0]
    stated = first["proven_total"]
    if first["assumed_total"] is not None:
        stated = first["assumed_total"]
    return {
        ACCURACY: metrics["accuracy_last_5"],
        EPSILON: number(stated),
        CLAIMED: number(first["claimed_total"]),
        "bytes up": metrics["bytes_up"],
        "seconds": metrics["seconds"],
        "state": AT_CHANCE if metrics.get("at_chance") else None,
    }


def _over_seeds(jobs: Sequence[Record]) -> list[Record]:
    """A record for each setting with several seeds: mean ± standard deviation, the largest ε."""
    alike: dict[tuple[Any, ...], list[Record]] = {}
    for job in jobs:
        if job.get(ACCURACY) is not None and "seed" in job:
            setting = tuple((k, v) for k, v in job.items() if k not in ("seed", *FIGURES))
            alike.setdefault(setting, []).append(job)
    found = []
    for setting, same in alike.items():
        if len(same) > 1:
            scores = [job[ACCURACY] for job in same]
            record = {**dict(setting), "seed": counted(len(same), "seed")}
            record[ACCURACY] = f"{statistics.mean(scores):.4f} ± {statistics.stdev(scores):.4f}"
            for name in (EPSILON, CLAIMED):
                record[name] = max(
                    (job[name] for job in same if job[name] is not None), default=None
                )
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
        return show_epsilon("infinity" if value == math.inf else value)
    return f"{value:{_FORMATS[name]}}"
