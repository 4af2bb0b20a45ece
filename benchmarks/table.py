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
    ``at_least`` and ``aim``: in ``unit``; None where a figure is printed without a target.
    ``kernels``: where arithmetic decides, the model that is trained and its precision.
    ``more``: whether the figure should be above its targets; else it should be below.
    """

    name: str
    work: str
    needs: tuple[str, ...]
    figure: Callable[[Results], float]
    unit: Literal["x", "%", "s", "ms", "h"]
    at_least: float | None = None
    aim: float | None = None
    kernels: tuple[str, str] | None = None
    more: bool = False

    def verdict(self, value: float) -> str:
        """Which target is met, or by how much it is missed; empty without targets."""
        if self.at_least is None:
            return ""
        for target, word in ((self.aim, "aim met"), (self.at_least, "met")):
            if target is not None and (value >= target if self.more else value <= target):
                return word
        missing = self.at_least / value if self.more else value / self.at_least
        return f"**missed by {missing - 1:.0%}**"

    def share(self, results: Results) -> str:
        """How much of the machine's peak our side's training reaches, where both are known."""
        if self.kernels is None or not results.get("peak"):
            return ""
        model, precision = self.kernels
        return f"{of_peak(results, self.needs[0], model, precision):.0%} of {precision}"


def median(results: Results, measure: str, key: str) -> float:
    """Over the repeats; where a measure gives several values, of their means."""
    values = [result[key] for result in results[measure]]
    return statistics.median(statistics.mean(v) if isinstance(v, list) else v for v in values)


def of_peak(results: Results, measure: str, model: str, precision: str) -> float:
    """The arithmetic of training in a round of ``measure`` over what the cores do in that time."""
    possible = median(results, "peak", precision) * median(results, measure, "rounds")
    return median(results, "peak", model) / possible


def ratio(theirs: str, ours: str, key: str = "rounds") -> Callable[[Results], float]:
    """How many times as long the competitor takes."""
    return lambda results: median(results, theirs, key) / median(results, ours, key)


def figure(measure: str, key: str, scale: float = 1.0) -> Callable[[Results], float]:
    """One measure's own figure."""
    return lambda results: scale * median(results, measure, key)


def compared(name: str, work: str, sides: tuple[str, str], *targets: float) -> Row:
    """A row for rounds of a competitor's against ours, whose training is bounded by kernels."""
    ours, theirs = sides
    at_least, aim = targets
    kernels = (ours.split()[0], "bf16" if ours.endswith("bf16") else "fp32")
    return Row(name, work, sides, ratio(theirs, ours), "x", at_least, aim, kernels, more=True)


def whole(name: str, ours: str, precision: str) -> Row:
    """The authors' 500 rounds of 40 clients, computed from rounds of 10: the server's part, too."""
    work = f"PrivateKT, the authors' 500 rounds at four times such a round, {precision} (computed)"
    return Row(name, work, (ours,), figure(ours, "rounds", 500 * 4 / 3600), "h")


def arithmetic(name: str, ours: str, precision: str, at_least: float, aim: float) -> Row:
    """The share of the machine's peak that PrivateKT's round reaches."""

    def share(results: Results) -> float:
        return 100 * of_peak(results, ours, "privatekt", precision)

    work = f"share of the cores' {precision} peak in PrivateKT's round"
    return Row(name, work, (ours, "peak"), share, "%", at_least, aim, more=True)


_CNN = "FedAvg, CNN 1→16→16, 100 clients × 10 steps, against "
_EAGER, _FLOWER = "the bare eager loop on one thread", "plain Flower with two workers"
_PFL, _BF16 = "pfl with two processes", ", in bfloat16"
_AUTHORS = "PrivateKT, authors' configuration, a round, against the authors' loop on two threads"
ROWS = (
    compared("cnn-eager", f"{_CNN}{_EAGER}", ("cnn murmur", "cnn eager"), 6.5, 8),
    compared("cnn-eager-bf16", f"{_CNN}{_EAGER}{_BF16}", ("cnn murmur bf16", "cnn eager"), 10, 14),
    compared("cnn-flower", f"{_CNN}{_FLOWER}", ("cnn murmur", "cnn flower"), 4, 5),
    compared(
        "cnn-flower-bf16", f"{_CNN}{_FLOWER}{_BF16}", ("cnn murmur bf16", "cnn flower"), 5.5, 7
    ),
    compared("cnn-pfl", f"{_CNN}{_PFL}", ("cnn murmur", "cnn pfl"), 3.6, 5),
    compared("cnn-pfl-bf16", f"{_CNN}{_PFL}{_BF16}", ("cnn murmur bf16", "cnn pfl"), 6, 9),
    compared(
        "mlp-flower",
        "FedAvg, MLP 784–256–10, 100 clients, 1 epoch of 600, against plain Flower",
        ("mlp murmur", "mlp flower"),
        *(5.5, 8),
    ),
    compared("privatekt", _AUTHORS, ("privatekt murmur", "privatekt authors"), 3.2, 4),
    compared(
        "privatekt-bf16",
        f"{_AUTHORS}{_BF16}",
        ("privatekt murmur bf16", "privatekt authors"),
        *(5.5, 8),
    ),
    arithmetic("privatekt-peak", "privatekt murmur", "fp32", 42, 55),
    arithmetic("privatekt-peak-bf16", "privatekt murmur bf16", "bf16", 25, 40),
    whole("privatekt-500", "privatekt murmur", "float32"),
    whole("privatekt-500-bf16", "privatekt murmur bf16", "bfloat16"),
    Row(
        "start-ray",
        "from the command to the first round's end, digits, engine `ray`, against `flwr run`",
        ("start murmur ray", "start flower"),
        ratio("start flower", "start murmur ray", "first"),
        *("x", 2.2, 3),
        more=True,
    ),
    Row(
        "start-inline",
        "the same work, engine `inline`",
        ("start murmur inline",),
        figure("start murmur inline", "first"),
        *("s", 5, 3),
    ),
    Row(
        "sweep",
        "a later small job of a sweep beyond its work, engine `ray`",
        ("sweep ray",),
        figure("sweep ray", "later"),
        *("s", 0.25, 0.1),
    ),
    Row(
        "sweep-inline",
        "the same, engine `inline`, one core",
        ("sweep inline",),
        figure("sweep inline", "later"),
        *("s", 0.25, 0.1),
    ),
    Row(
        "sweep-finished",
        "a sweep of 60 jobs that are all finished, the whole command",
        ("sweep finished",),
        figure("sweep finished", "whole"),
        *("s", 2.5, 1.5),
    ),
    Row(
        "dpsgd-cnn",
        "DP-SGD, the CNN of KD-DPFL, lots of 50, one thread, against Opacus",
        ("dpsgd cnn",),
        figure("dpsgd cnn", "ratio"),
        *("x", 1.5, 4),
        more=True,
    ),
    Row(
        "dpsgd-mlp",
        "the same, MLP 784–256–10",
        ("dpsgd mlp",),
        figure("dpsgd mlp", "ratio"),
        *("x", 1.5, 4),
        more=True,
    ),
    Row(
        "no-pool",
        "`experiment=fashion_no_pool`, ε = 1, the whole command",
        ("no pool",),
        figure("no pool", "whole"),
        *("s", 300, 120),
    ),
    Row(
        "real-sums",
        "a client of a round of 1,000 by real secure sums, over one of simulated ones",
        ("real sums",),
        figure("real sums", "ratio"),
        *("x", 25, 15),
    ),
    Row(
        "groups",
        "a client of 200 against a server that lies: in five groups, over one graph",
        ("groups",),
        figure("groups", "ratio"),
        *("x", 0.2, 0.15),
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
        "privacy",
        "mechanism + accounting + ledger, share of a round (PrivateKT)",
        ("privacy",),
        figure("privacy", "share", 100),
        *("%", 5, 1),
    ),
    Row(
        "labels",
        "ε of 20,000 randomised labels",
        ("small work",),
        figure("small work", "labels", 1000),
        *("ms", 50, 5),
    ),
    Row(
        "ledger",
        "ε of a ledger of 300 different releases",
        ("small work",),
        figure("small work", "ledger"),
        *("s", 5, 1),
    ),
    Row(
        "later-round",
        "ε of a later round of bits in sums",
        ("small work",),
        figure("small work", "later round", 1000),
        *("ms", 50, 5),
    ),
    Row(
        "scores",
        "all clustering scores of 1,000 clients' vectors",
        ("small work",),
        figure("small work", "scores"),
        *("s", 2, 0.2),
    ),
    Row(
        "lockstep",
        "tiny clients together, against one by one (about 1 where the library's bits differ)",
        ("small work",),
        figure("small work", "lockstep"),
        *("x", 2, 4),
        more=True,
    ),
    Row(
        "memory",
        "peak memory at 10,000 virtual clients over that at 100 (% more)",
        ("memory 100", "memory many"),
        lambda r: 100 * (median(r, "memory many", "peak") / median(r, "memory 100", "peak") - 1),
        *("%", 20, 20),
    ),
)
ALSO = ("peak", "steps", "sampled murmur")  # measured without a target


def main_table(results: Results, left_out: Mapping[str, str]) -> list[str]:
    """Markdown: a row for each comparison; ``left_out`` says why measures are not there."""
    lines = ["| work | measured | at least | aim | | peak |", "|---|---|---|---|---|---|"]
    for row in ROWS:
        if any(not results.get(need) for need in row.needs):
            missing = [need for need in row.needs if not results.get(need)]
            why = ", ".join(left_out.get(need, need) for need in missing)
            lines.append(f"| {row.work} | not measured ({why}) | {_targets(row)} | | |")
            continue
        value = row.figure(results)
        lines.append(
            f"| {row.work} | **{_show(row, value)}** | {_targets(row)} "
            f"| {row.verdict(value)} | {row.share(results)} |"
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
    "fp32": "matrix products, float32, GFLOP/s",
    "bf16": "matrix products, bfloat16, GFLOP/s",
    "copy": "memory read and written by a copy, GB/s",
    "cnn": "training of a CNN round, GFLOP",
    "mlp": "training of an MLP round, GFLOP",
    "privatekt": "training of a PrivateKT round, GFLOP",
    "later": "a later job beyond its work, s",
    "whole": "the whole command, s",
    "pages": "pages found for a tensor of 64 MiB",
    "here": "examples a second",
    "there": "examples a second in Opacus",
    "ratio": "ratio",
    "first ms": "a client, ms",
    "second ms": "a client of what it is compared with, ms",
}


def _targets(row: Row) -> str:
    """Both columns of targets."""
    return " | ".join(_show(row, target) for target in (row.at_least, row.aim))


def _show(row: Row, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}×" if row.unit == "x" else f"{value:.3g} {row.unit}"
