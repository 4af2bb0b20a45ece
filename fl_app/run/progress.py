"""What a person sees while a run goes on: a live bar on a terminal or in a notebook, else lines.

It reads the run's own rows, so it works the same for every engine and costs the run nothing.
"""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fl_app.run.live_display import LiveDisplay
from fl_app.run.results import RunFolder
from murmur.privacy.statement_text import against


class LiveProgress(LiveDisplay):
    """Shows the rows of ``folder`` as they appear, until the context ends.

    Clients that failed are printed by reason, in each round. The first time that a reason appears,
    the traceback of one such client follows, where the run's own log has it.

    Args:
        folder: of the run, whoever writes it.
        rounds: how many the run has in all.
        console: a terminal gets a bar, a notebook its own, anything else a line for each round.
    """

    def __init__(self, folder: RunFolder, rounds: int, console: Console) -> None:
        self.folder, self.rounds, self.console = folder, rounds, console
        self._shown = 0
        self._reasons: set[str] = set()
        bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        super().__init__(bar)
        self._task = bar.add_task("starting workers", total=rounds)
        self._notebook = _notebook_bar(rounds) if console.is_jupyter and not console.quiet else None

    def _show(self) -> None:
        rows = self.folder.rows()
        for row in rows[self._shown :]:
            line = describe(row)
            self._bar.update(self._task, completed=row["round"], description=line)
            if self._notebook is not None:
                self._notebook.progress = row["round"]
            elif not self.console.is_terminal:
                self.console.print(f"round {row['round']}/{self.rounds}  {line}", soft_wrap=True)
            for reason, clients in failures(row).items():
                self._print(failure_line(row["round"], reason, clients), "yellow")
                if reason not in self._reasons:
                    self._reasons.add(reason)
                    if trace := traceback_of(self.folder, row["round"], clients[0]):
                        self._print(trace, "yellow")
        self._shown = len(rows)


def _notebook_bar(rounds: int) -> Any:
    """IPython's own bar: rich has one for terminals, and for notebooks with further packages."""
    from IPython.display import ProgressBar

    bar = ProgressBar(rounds)
    bar.display()
    return bar


def describe(row: dict[str, Any]) -> str:
    """One row in a few words: accuracy, ε spent so far, how many clients failed."""
    parts = []
    if "accuracy" in row:
        parts.append(f"accuracy {row['accuracy']:.3f}")
    parts.append(f"ε spent {show_epsilon(row['epsilon_proven'])}")
    if "epsilon_assumed" in row:
        parts.append(f"({show_epsilon(row['epsilon_assumed'])} under assumptions)")
    if row["failed"]:
        parts.append(f"{len(row['failed'])} clients failed")
    return "  ".join(parts)


def failures(row: dict[str, Any]) -> dict[str, list[str]]:
    """The clients of a row that failed or refused, by reason; ids as JSON's keys, which are text.

    On devices there is one reason for all refusals (``murmur.round.task.REFUSED``).
    """
    clients: dict[str, list[str]] = {}
    for client, reason in row["failed"].items():
        clients.setdefault(reason, []).append(client)
    return clients


def failure_line(number: int, reason: str, clients: list[str]) -> str:
    """One line for a reason and the clients that it stopped, five of them by id."""
    more = f" and {len(clients) - 5} more" if len(clients) > 5 else ""
    return f"round {number}: client {', '.join(clients[:5])}{more}: {reason}"


def traceback_of(folder: RunFolder, number: int, client: str) -> str:
    """What the simulation's log says of a client's error, with its traceback; "" if nothing.

    The log of a device stays there.
    """
    path, head = folder.path / "errors.log", f"round {number}, client {client}: "
    if not path.exists():
        return ""
    entries = re.split(r"\n\n(?=round \d+, client )", path.read_text(encoding="utf-8"))
    return next((entry.strip() for entry in entries if entry.startswith(head)), "")


def show_epsilon(value: float | str | None) -> str:
    """ε for people: three digits, or the sign for infinity.

    Args:
        value: a number; "infinity", as JSON has it; None, where nothing is claimed or proven.
    """
    if value is None:
        return "none"
    if value == "infinity":
        return "∞"
    return f"{float(value):.3g}" if float(value) < 1000 else f"{float(value):,.0f}"


def summary_table(metrics: dict[str, Any], guarantees: list[dict[str, Any]]) -> Table:
    """The figures of a finished run, and ε against each adversary.

    For each guarantee: what is proven, or, where the statement rests on assumptions, what holds
    under these; and beside it what the paper claims, if it claims anything.

    Args:
        metrics: of ``metrics.json``.
        guarantees: of ``privacy.json``.
    """
    table = Table(title="Result", show_header=False)
    table.add_column(style="bold", max_width=72)
    table.add_column()
    if metrics["accuracy"] is not None:
        table.add_row("accuracy, last round", f"{metrics['accuracy']:.4f}")
        table.add_row("accuracy, mean of last 5", f"{metrics['accuracy_last_5']:.4f}")
    for guarantee in guarantees:
        who = against(guarantee["adversary"], guarantee["assumptions"])
        stated = guarantee["assumed_total"] or guarantee["proven_total"]
        table.add_row(f"ε against {who}", show_epsilon(stated))
        if guarantee["claimed_total"] is not None:
            claimed = show_epsilon(guarantee["claimed_total"])
            table.add_row("ε that the paper claims there", claimed)
    table.add_row("bytes sent by clients", f"{metrics['bytes_up']:,}")
    table.add_row("client failures", str(metrics["failed"]))
    table.add_row("seconds", f"{metrics['seconds']:.1f}")
    return table
