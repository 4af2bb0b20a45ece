"""What a person sees while a run goes on: a live bar on a terminal or in a notebook, else lines.

It reads the run's own rows, so it works the same for every engine and costs the run nothing.
"""

import math
import re
import shlex
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from fl_app.console import WIDE, LiveDisplay
from fl_app.run.results import RunFolder
from fl_app.run.scores import chance_of, label_of
from murmur.format import format_number, pluralize
from murmur.learning.metrics import chance, is_at_chance
from murmur.privacy.statement import Statement
from murmur.privacy.statement_text import card

CARD = 100  # letters that a card is wide at most
CARD_LINES = 10  # that it is long at most
CARD_INDENT = 13  # letters of its labels
# Where it would be longer, in this order.
_SHORTENED = ("Claimed", "Result", "If it fails", "Measured", "Promise", "Holds if")
_VOID = "VOID, "
LAST_ROUNDS = 5  # over which a final score is averaged
_SHORT = {"privacy.epsilon": "ε", "privacy.delta": "δ", "strategy.gamma": "γ"}


class LiveProgress(LiveDisplay):
    """Shows the rows of ``folder`` as they appear, until the context ends.

    Clients that failed are printed by reason, in each round. The first time that a reason appears,
    the traceback of one such client follows, where the run's own log has it.

    Args:
        folder: of the run, whoever writes it.
        rounds: how many the run has in all.
        console: a terminal gets a bar, a notebook its own, anything else a line for each round.
        whom: against whom rows state ε, in words (``murmur.privacy.statement_text.THREATS``).
        score: the leading one, by its name in a row.
    """

    def __init__(
        self,
        folder: RunFolder,
        rounds: int,
        console: Console,
        whom: str,
        score: str = "accuracy",
    ) -> None:
        self.folder, self.rounds, self.console, self.whom = folder, rounds, console, whom
        self.score = score
        self._shown = 0
        self._reasons: set[str] = set()
        super().__init__("round", console)
        self._task = self._bar.add_task("starting workers", total=rounds)
        self._notebook = _notebook_bar(rounds) if console.is_jupyter and not console.quiet else None

    def _show(self) -> None:
        for row in self.folder.rows(self._shown):
            self._shown += 1
            scored = describe(row, self.score)
            line = f"{scored}  {spent(row, self.whom)}".strip()
            beside = line if self.console.width >= WIDE else f"{scored}  {loss(row)}"
            self._bar.update(self._task, completed=row["round"], description=beside.strip())
            if self._notebook is not None:
                self._notebook.progress = row["round"]
            elif not self.console.is_terminal:
                self._print(f"round {row['round']}/{self.rounds}  {line}")
            for reason, clients in failures(row).items():
                self._print(failure_line(row["round"], reason, clients), "yellow")
                if reason not in self._reasons:
                    self._reasons.add(reason)
                    if trace := traceback_of(self.folder, row["round"], clients[0]):
                        self._print(trace, "yellow")


def _notebook_bar(rounds: int) -> Any:
    """IPython's own bar: rich has one for terminals, and for notebooks with further packages."""
    from IPython.display import ProgressBar

    bar = ProgressBar(rounds)
    bar.display()
    return bar


def describe(row: dict[str, Any], score: str = "accuracy") -> str:
    """One row in a few words: its leading ``score``, and how many clients failed."""
    parts = []
    if score in row:
        parts.append(f"{label_of(score)} {row[score]:.3f}")
    if row["failed"]:
        parts.append(f"{pluralize(len(row['failed']), 'client')} failed")
    return "  ".join(parts)


def loss(row: dict[str, Any]) -> str:
    """The most exposed client's privacy loss so far, if any is known."""
    epsilon = row.get("epsilon_assumed", row["epsilon_proven"])
    if epsilon is None:
        return "no ε is proven"
    return f"ε = {format_epsilon(epsilon)}"


def spent(row: dict[str, Any], whom: str) -> str:
    """``loss``, and against whom.

    Args:
        row: of a round.
        whom: the adversary in words.
    """
    if row["epsilon_proven"] is None:
        return loss(row)
    return f"{loss(row)} so far against {whom}"


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
    """Returns a client's error with its traceback from a simulation's log; "" if there is none.

    The log of a device stays on the device.
    """
    path, head = folder.path / "errors.log", f"round {number}, client {client}: "
    if not path.exists():
        return ""
    entries = re.split(r"\n\n(?=round \d+, client )", path.read_text(encoding="utf-8"))
    return next((entry.strip() for entry in entries if entry.startswith(head)), "")


def format_epsilon(value: float | str | None) -> str:
    """ε for people: three digits, rounded up, or the sign for infinity.

    Args:
        value: a number, or "infinity", as JSON has it; None, where nothing is claimed or proven.
    """
    if value is None:
        return "none"
    if float(value) == math.inf:
        return "∞"
    return format_number(float(value))


def short_name(key: str, among: Iterable[str]) -> str:
    """A name for a dotted key that fits beside a line or above a column.

    Args:
        key: dotted.
        among: keys that it must be told apart from.

    Returns:
        A letter where one is known, the last part, or all of it where another of ``among`` ends
        alike.
    """
    last = key.rsplit(".", 1)[-1]
    alike = [other for other in among if other.rsplit(".", 1)[-1] == last]
    return _SHORT.get(key, last if len(alike) <= 1 else key)


def show_end(folder: RunFolder, labels: NDArray[np.int64], console: Console) -> None:
    """Print what a finished run came to.

    Args:
        folder: of the run.
        labels: of the test set, (n,).
        console: where it is printed.
    """
    for line in end_lines(folder, labels, shown_path(folder.path), console.width):
        style = None
        if _VOID in line:
            style = "red"
        console.print(line, style=style, soft_wrap=True)


def end_lines(
    folder: RunFolder, labels: NDArray[np.int64], path: str, width: int = CARD
) -> list[str]:
    """Result card of a finished run for a terminal or a log, ten lines at most.

    Args:
        folder: of the run.
        labels: of the test set, (n,).
        path: of the folder, as its reader would type it.
        width: that no line exceeds, in letters, but where one word alone does.
    """
    parts = {"Result": _result(folder, labels), **card(Statement.from_dict(folder.statement()))}
    parts["Model"] = [f"{path}/model"]
    parts["Next"] = [f"murmur report {path}\nmurmur statement {path}"]
    room = min(width, CARD) - CARD_INDENT
    shown = {label: _wrapped(texts.pop(0), room) for label, texts in parts.items()}
    for label in _SHORTENED:
        while parts.get(label) and sum(map(len, shown.values())) > CARD_LINES:
            shown[label] = _wrapped(parts[label].pop(0), room)
    found = []
    for label, lines in shown.items():
        heads = [label, *[""] * len(lines)]
        found += [f"{head:{CARD_INDENT}}{line}" for head, line in zip(heads, lines, strict=False)]
    return found


def _wrapped(text: str, width: int) -> list[str]:
    """``text`` in lines; a command, which has one of its own, and a long word stay whole."""
    if text.startswith("murmur "):
        return text.split("\n")
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _result(folder: RunFolder, labels: NDArray[np.int64]) -> list[str]:
    """Describes the run's score on the server's test set beside chance, and failed answers.

    Returns:
        Texts that say the same, the longest first.
    """
    metrics = folder.metrics() or {}
    missing = ""
    if metrics.get("failed"):
        missing = f"; {pluralize(metrics['failed'], 'answer')} failed"
    if not any(row["counted"] for row in folder.rows() if row["round"] > 0):
        return [f"refused: no round was accepted, and nothing was learnt{missing}"]
    accuracy = metrics.get("accuracy")
    if "score" in metrics:
        return _scored(metrics, missing)
    if accuracy is None:
        return [f"accuracy not measured{missing}"]
    beside = f"; chance {chance(labels):.3f}{missing}"
    if is_at_chance(accuracy, labels):
        beside = f": no better than chance ({chance(labels):.3f}), nothing was learnt{missing}"
    figure = f"accuracy {accuracy:.3f}"
    last = f"{figure} after {pluralize(metrics['rounds'], 'round')}"
    if metrics["rounds"] == 1:
        return [last + beside, figure + beside]
    over = min(LAST_ROUNDS, metrics["rounds"])
    return [
        f"{last} (last {over}: {metrics['accuracy_last_5']:.3f}){beside}",
        last + beside,
        figure + beside,
    ]


def _scored(metrics: dict[str, Any], missing: str) -> list[str]:
    """Returns the leading score of a run where that is not accuracy, the longest text first.

    Args:
        metrics: the run's, with ``score`` and ``score_last_5``.
        missing: whose answers are missing.
    """
    name = metrics["score"]
    value = metrics.get(name)
    if value is None:
        return [f"{label_of(name)} not measured{missing}"]
    guessed = chance_of(name)
    beside = missing if guessed is None else f"; chance {guessed:.3f}{missing}"
    figure = f"{label_of(name)} {value:.3f}"
    if metrics.get("at_chance") and name == "r2":
        beside = f": no better than the mean, nothing was learnt{missing}"
    others = [
        other for other in ("rmse", "mae") if metrics.get(other) is not None and other != name
    ]
    if others:
        said = ", ".join(f"{label_of(other)} {metrics[other]:.4g}" for other in others)
        figure = f"{figure} ({said})"
    last = f"{figure} after {pluralize(metrics['rounds'], 'round')}"
    if metrics["rounds"] == 1:
        return [last + beside, figure + beside]
    over = min(LAST_ROUNDS, metrics["rounds"])
    return [
        f"{last} (last {over}: {metrics['score_last_5']:.3f}){beside}",
        last + beside,
        figure + beside,
    ]


def shown_path(path: Path) -> str:
    """``path`` as one would type it here, quoted for a shell."""
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return shlex.quote(str(path))
