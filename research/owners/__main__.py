"""The figures of the README here: ``python -m research.owners WHAT [EXPERIMENT ...]``.

``run``: whole runs of ``murmur``, one process each. ``direct``: gradient rounds in this process
(``research.owners.rounds``). ``references``: what needs no federation. ``choose``: settings on
held-back owners. ``hospitals``: together and each alone. ``masks``: real secure sums beside
simulated ones. ``table``: what there is.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from research.owners.choose import GRIDS, QUIET, choose, direct_row, words_of
from research.owners.hospitals import table as hospitals
from research.owners.masks import table as masks
from research.owners.references import reference_row

SEEDS = (1, 2, 3)
BUDGETS = ("1", "8", "inf")
EXPERIMENTS = (
    "hospitals",
    "descriptions",
    "mnist_no_pool",
    "fashion_no_pool",
    "flights",
    "flights_weather",
)
WHAT = ("run", "direct", "references", "choose", "hospitals", "masks", "table")
SCORES = ("accuracy", "accuracy_over_owners", "balanced_accuracy_score", "auc")


def root() -> Path:
    """Where runs go."""
    return Path(os.environ.get("MURMUR_RESULTS", "runs")) / "owners"


def run(names: Sequence[str]) -> None:
    """Every run of ``names`` that is not there yet, one process each."""
    for name in names:
        for budget in BUDGETS:
            for seed in SEEDS:
                folder = root() / f"{name}-{budget}-{seed}"
                if (folder / "metrics.json").exists():
                    continue
                words = [*words_of(name, budget, seed), *QUIET, "keep_checkpoints=false"]
                command = [sys.executable, "-m", "fl_app", *words, f"run_dir={folder}"]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                print(name, budget, seed, scores_of(folder), flush=True)


def direct(names: Sequence[str], budgets: Sequence[str], processes: int) -> None:
    """Every direct run of ``names`` on the test set that is not there yet; rows in direct.jsonl."""
    done = {(row["name"], row["budget"], row["seed"]) for row in kept("direct")}
    wanted = [case for case in itertools.product(names, budgets, SEEDS) if case not in done]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for row in pool.map(direct_row, wanted):
            if row is not None:
                keep("direct", row)


def fit_references(names: Sequence[str], processes: int) -> None:
    """References of ``names`` that are not there yet; rows in references.jsonl."""
    done = {(row["name"], row["seed"]) for row in kept("references")}
    wanted = [case for case in itertools.product(names, SEEDS) if case not in done]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for row in pool.map(reference_row, wanted):
            keep("references", row)


def keep(what: str, row: dict[str, Any]) -> None:
    """Append to a file of rows, and print."""
    root().mkdir(parents=True, exist_ok=True)
    with (root() / f"{what}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(row["name"], row.get("budget", what), row["seed"], row["scores"], flush=True)


def kept(what: str) -> list[dict[str, Any]]:
    """The rows that are there."""
    path = root() / f"{what}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def scores_of(folder: Path) -> dict[str, float]:
    """The last round's scores on the test set."""
    rows = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    last = json.loads(rows[-1])
    return {name: last[name] for name in SCORES if name in last}


def table(names: Sequence[str]) -> None:
    """Print means over the seeds that are there, and their standard deviations."""
    print("| experiment | | accuracy | over owners | balanced | AUC | seeds |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        for budget in BUDGETS:
            folders = [root() / f"{name}-{budget}-{seed}" for seed in SEEDS]
            done = [scores_of(f) for f in folders if (f / "metrics.json").exists()]
            title = f"ε = {budget.replace('inf', '∞')}"
            _print(name, title, done)
            rows = [row for row in kept("direct") if (row["name"], row["budget"]) == (name, budget)]
            _print(name, f"{title}, direct", [row["scores"] for row in rows])
        found = [row["scores"] for row in kept("references") if row["name"] == name]
        for what in found[0] if found else ():
            _print(name, what, [each[what] for each in found])


def _print(name: str, what: str, found: Sequence[dict[str, float]]) -> None:
    if not found:
        return
    cells = []
    for score in SCORES:
        values = [each[score] for each in found if score in each]
        text = ""
        if values:
            text = f"{np.mean(values):.3f}"
        if len(values) > 1:
            text += f" ± {np.std(values, ddof=1):.3f}"
        cells.append(text)
    print(f"| `{name}` | {what} | {' | '.join(cells)} | {len(found)} |", flush=True)


def main() -> None:
    """Run the experiments, or print the table of those that have run."""
    parser = argparse.ArgumentParser(prog="python -m research.owners", description=__doc__)
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("names", nargs="*", default=list(EXPERIMENTS), metavar="EXPERIMENT")
    parser.add_argument("--budget", choices=BUDGETS, help="of the grid to choose in, or of direct")
    parser.add_argument("--processes", type=int, default=1, help="of what is computed here")
    options = parser.parse_args()
    budgets: Sequence[str] = BUDGETS
    if options.budget is not None:
        budgets = (options.budget,)
    if options.what == "run":
        run(options.names)
    elif options.what == "direct":
        direct(options.names, budgets, options.processes)
    elif options.what == "references":
        fit_references(options.names, options.processes)
    elif options.what == "hospitals":
        hospitals(SEEDS)
    elif options.what == "masks":
        masks([name for name in options.names if name != "hospitals"])
    elif options.what == "choose":
        cases = [case for case in itertools.product(options.names, budgets) if case in GRIDS]
        choose(cases, SEEDS, options.processes)
    else:
        table(options.names)


if __name__ == "__main__":
    main()
