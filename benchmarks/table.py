"""The rows of ``benchmarks/RESULTS.md``: figures, the measures they come from, targets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Results = Mapping[str, Sequence[Mapping]]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    ``needs``: the measures that it is made of. ``figure``: their medians as one number.
    ``at_least`` and ``aim``: in ``unit``; a ratio should be above them, anything else below.
    """

    name: str
    work: str
    needs: tuple[str, ...]
    figure: Callable[[Results], float]
    unit: Literal["x", "%", "s", "ms"]
    at_least: float
    aim: float

    def verdict(self, value: float) -> str:
        """Which target is met, or by how much it is missed."""
        for target, word in ((self.aim, "aim met"), (self.at_least, "met")):
            if value >= target if self.unit == "x" else value <= target:
                return word
        missing = self.at_least / value if self.unit == "x" else value / self.at_least
        return f"**missed by {missing - 1:.0%}**"


def median(results: Results, measure: str, key: str) -> float:
    """Over the repeats; where a measure gives several values, of their means."""
    values = [result[key] for result in results[measure]]
    return statistics.median(statistics.mean(v) if isinstance(v, list) else v for v in values)


def ratio(theirs: str, ours: str, key: str = "rounds") -> Callable[[Results], float]:
    """How many times as long the competitor takes."""
    return lambda results: median(results, theirs, key) / median(results, ours, key)


def figure(measure: str, key: str, scale: float = 1.0) -> Callable[[Results], float]:
    """One measure's own figure."""
    return lambda results: scale * median(results, measure, key)


_CNN = "FedAvg, CNN 1→16→16, 100 clients × 10 steps, against "
ROWS = (
    Row(
        "cnn-eager",
        f"{_CNN}the bare eager loop on one thread",
        ("cnn murmur", "cnn eager"),
        ratio("cnn eager", "cnn murmur"),
        *("x", 4, 8),
    ),
    Row(
        "cnn-flower",
        f"{_CNN}plain Flower with two workers",
        ("cnn murmur", "cnn flower"),
        ratio("cnn flower", "cnn murmur"),
        *("x", 2.5, 5),
    ),
    Row(
        "cnn-pfl",
        f"{_CNN}pfl with two processes",
        ("cnn murmur", "cnn pfl"),
        ratio("cnn pfl", "cnn murmur"),
        *("x", 2, 4),
    ),
    Row(
        "mlp-flower",
        "FedAvg, MLP 784–256–10, 100 clients, 1 epoch of 600, against plain Flower",
        ("mlp murmur", "mlp flower"),
        ratio("mlp flower", "mlp murmur"),
        *("x", 4, 8),
    ),
    Row(
        "privatekt",
        "PrivateKT, authors' configuration, a round, against the authors' loop on two threads",
        ("privatekt murmur", "privatekt authors"),
        ratio("privatekt authors", "privatekt murmur"),
        *("x", 1.5, 3),
    ),
    Row(
        "overhead",
        "framework overhead, share of a round of 100 clients (CNN)",
        ("overhead 100",),
        figure("overhead 100", "share", 100),
        *("%", 5, 2),
    ),
    Row(
        "overhead-many",
        "framework overhead per client, 10,000 clients",
        ("overhead many",),
        figure("overhead many", "per_client", 1000),
        *("ms", 1, 0.3),
    ),
    Row(
        "start-ray",
        "from the command to the first round's end, digits, engine `ray`, against `flwr run`",
        ("start murmur ray", "start flower"),
        ratio("start flower", "start murmur ray", "first"),
        *("x", 2, 4),
    ),
    Row(
        "start-flower",
        "the same, engine `flower`, which is `flwr run` and the run's validation before it",
        ("start murmur flower", "start flower"),
        ratio("start flower", "start murmur flower", "first"),
        *("x", 1, 1),
    ),
    Row(
        "start-inline",
        "the same work, engine `inline`",
        ("start murmur inline",),
        figure("start murmur inline", "first"),
        *("s", 5, 3),
    ),
    Row(
        "privacy",
        "mechanism + accounting + ledger, share of a round (PrivateKT)",
        ("privacy",),
        figure("privacy", "share", 100),
        *("%", 5, 1),
    ),
    Row(
        "memory",
        "peak memory at 10,000 virtual clients over that at 100 (% more)",
        ("memory 100", "memory many"),
        lambda r: 100 * (median(r, "memory many", "peak") / median(r, "memory 100", "peak") - 1),
        *("%", 20, 20),
    ),
)
ALSO = ("sampled murmur",)  # measured without a target: that it works, and how long it takes


def main_table(results: Results) -> list[str]:
    """Markdown: a row for each comparison whose measures are all there."""
    lines = ["| work | measured | at least | aim | |", "|---|---|---|---|---|"]
    for row in ROWS:
        if any(not results.get(need) for need in row.needs):
            missing = ", ".join(need for need in row.needs if not results.get(need))
            lines.append(
                f"| {row.work} | not measured ({missing}) | {_show(row, row.at_least)} "
                f"| {_show(row, row.aim)} | |"
            )
            continue
        value = row.figure(results)
        lines.append(
            f"| {row.work} | **{_show(row, value)}** | {_show(row, row.at_least)} "
            f"| {_show(row, row.aim)} | {row.verdict(value)} |"
        )
    return lines


def detail_table(results: Results) -> list[str]:
    """Markdown: every measure's median, and the least and most of its repeats."""
    lines = ["| measure | figure | median | least | most | repeats |", "|---|---|---|---|---|---|"]
    for measure, repeats in results.items():
        for key in repeats[0]:
            values = [
                statistics.mean(r[key]) if isinstance(r[key], list) else r[key]
                for r in repeats
                if r[key] not in (None, [])
            ]
            if values:
                middle = statistics.median(values)
                figures = " | ".join(f"{x:.4g}" for x in (middle, min(values), max(values)))
                lines.append(f"| {measure} | {KEYS.get(key, key)} | {figures} | {len(values)} |")
    return lines


KEYS = {
    "first": "command to the end of round 1, s",
    "rounds": "a later round, s",
    "accuracy": "accuracy after the last round",
    "share": "share of a round",
    "per_client": "s per client",
    "round": "a round, s",
    "peak": "peak memory, MiB",
}


def _show(row: Row, value: float) -> str:
    return f"{value:.2f}×" if row.unit == "x" else f"{value:.3g} {row.unit}"
