"""Everything that Murmur claims about speed, measured in one go: ``make bench``.

    python -m benchmarks [--only ROW ...] [--repeats 5] [--rounds 2] [--minutes 12] [--quick]

The sides of every comparison take turns, as often as begin within ``--minutes``. Each measurement
is appended to ``runs/bench`` as it is made, so the next command goes on where this one ended or was
interrupted, up to ``--repeats``; ``--fresh`` begins anew. What this machine cannot run is left out
with a word. Writes ``benchmarks/RESULTS.md``; ``--quick`` (once, small, its figures mean little)
only prints.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.machine import describe_machine
from benchmarks.measures import MEASURES, Bench, UnavailableError
from benchmarks.processes import ROOT
from benchmarks.table import ALSO, ROWS, detail_table, main_table
from fl_app.config.errors import ConfigError

RESULTS = Path(__file__).parent / "RESULTS.md"


def main() -> int:
    """Measure what is missing, then write the tables; 1 if a measurement failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [row.name for row in ROWS] + ["also"]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="ROW")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=12.0, help="inf: all repeats")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fresh", action="store_true", help="forget earlier measurements")
    options = parser.parse_args()
    if options.minutes <= 0:
        parser.error("--minutes must be above 0")
    if options.repeats < 1 or options.rounds < 2:
        parser.error("--repeats must be at least 1, --rounds at least 2: the first one starts up")
    scratch = ROOT / "runs" / ("bench-quick" if options.quick else f"bench-{options.rounds}")
    if options.fresh:
        shutil.rmtree(scratch, ignore_errors=True)
    bench = Bench(scratch, options.rounds)
    if options.quick:
        bench, options.repeats = Bench(scratch, 2, clients=4, cohort=2, many=1000, jobs=2), 1
    store = Store(scratch / "measurements.jsonl")
    end = time.monotonic() + 60 * options.minutes
    try:
        failed, left_out = measure(bench, store, _needed(options.only), options.repeats, end)
    except ConfigError as error:  # the data, which no measurement can do without
        print(f"bench: {error}", file=sys.stderr)
        return 2
    text = report(bench, store.by_measure(), left_out)
    print(text)
    if not options.quick:
        RESULTS.write_text(text + "\n", encoding="utf-8")
    return 1 if failed else 0


class Store:
    """The measurements made so far, one line of JSON each."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path

    def lines(self) -> list[dict]:
        """All of them."""
        return (
            [json.loads(line) for line in self.path.read_text().splitlines()]
            if (self.path.exists())
            else []
        )

    def add(self, measure: str, repeat: int, result: dict) -> None:
        """One more."""
        line = {"measure": measure, "repeat": repeat, "machine": _machine(), "result": result}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def by_measure(self) -> dict[str, list[dict]]:
        """The results of every measure."""
        results = defaultdict(list)
        for line in self.lines():
            results[line["measure"]].append(line["result"])
        return dict(results)


def measure(
    bench: Bench, store: Store, names: list[str], repeats: int, end: float
) -> tuple[bool, dict[str, str]]:
    """Whatever is not measured yet until ``end``, side after side.

    Returns:
        Whether anything failed; why which measures were left out.
    """
    done = {(line["measure"], line["repeat"]) for line in store.lines()}
    failed = False
    left_out: dict[str, str] = {}
    for repeat in range(repeats):
        for name in names:
            if (name, repeat) in done or name in left_out or time.monotonic() > end:
                continue
            start = time.perf_counter()
            try:
                result = MEASURES[name](bench)
            except UnavailableError as error:
                print(f"{name}: left out: {error}", file=sys.stderr)
                left_out[name] = str(error)
                continue
            except RuntimeError as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed = True
                continue
            store.add(name, repeat, result)
            seconds = time.perf_counter() - start
            load = f"load {os.getloadavg()[0]:.1f}"
            print(
                f"{repeat + 1}/{repeats}  {name}  ({seconds:.0f} s, {load})  {result}", flush=True
            )
    return failed, left_out


def report(bench: Bench, results: dict[str, list[dict]], left_out: dict[str, str]) -> str:
    """The page: what was measured, on what, how."""
    lines = [
        "# Speed, measured",
        "",
        "Written by `make bench`; do not edit. What the figures mean and what bounds them:",
        "[performance.md](performance.md).",
        "",
        f"Machine: {_machine()}.",
        "",
        "Medians of the repeats that the second table counts, the sides taking turns, each a",
        "command of its own.",
        f"Comparisons run {bench.rounds} rounds; a round's time is that of the rounds after the",
        "first, which starts the workers and is counted under «from the command to the first",
        "round's end». Every round includes the evaluation on the test set. 10 steps are one epoch",
        "of a client's 600 examples: nine batches of 64 and one of 24. PrivateKT's round asks",
        f"{bench.cohort} clients instead of the authors' 40; all else is theirs. The last column",
        "is the arithmetic of our side's training in a round, over what the machine's cores do in",
        "matrix products of that precision in the same time (measured: the first rows below).",
        "Plain Flower is flwr 1.42, pfl is 0.6.0.",
        "",
        *main_table(results, left_out),
        "",
        "## Every measure",
        "",
        *detail_table(results),
    ]
    return "\n".join(lines)


def _needed(rows: list[str]) -> list[str]:
    chosen = {need for row in ROWS if row.name in rows for need in row.needs}
    if "also" in rows:
        chosen |= set(ALSO)
    return [name for name in MEASURES if name in chosen]


def _machine() -> str:
    return describe_machine("torch", "flwr", "ray")


if __name__ == "__main__":
    sys.exit(main())
