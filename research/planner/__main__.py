"""What `murmur advise settings` predicts, and what comes out.

``python -m research.planner --rows FILE`` measures.

For every setting the candidates' pilots choose, as the tool does; the same settings then run on the
clients' own data and the test set. Mean over ``SEEDS`` on both sides, of which digits have more:
their pilots are quick, and scored on few images. Rows are kept in FILE and not made twice.
``--frontier FILE``: predictions for cells of ``research.frontier.curves`` whose rows are in FILE
already, with the settings that were chosen there. Needs ``MURMUR_DATA`` for MNIST and
Fashion-MNIST.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import partial
from pathlib import Path

from fl_app.tools import advise
from research.frontier import curves as frontier
from research.frontier.rows import SETTINGS as SETTINGS_OF_FRONTIER
from research.frontier.rows import Cell

SEEDS = {"digits": 6, "mnist": 2, "fashion_mnist": 2}
_POOL = ("federation.public=10000", "federation.validation=2000")
_SKEW = ("partition=dirichlet", "partition.alpha=0.5")
# Name: strategy, words, clients, examples, ε.
SETTINGS = {
    f"{strategy}, {data} {clients}, ε = {epsilon:g}": advise.Request(
        (f"strategy={strategy}", f"dataset={data}", *words), clients, examples, epsilon, SEEDS[data]
    )
    for strategy, data, words, clients, examples, epsilon in [
        ("class_statistics", "digits", ("federation.public=720",), 60, 12, 8),
        ("class_statistics", "digits", ("federation.public=720",), 60, 12, 4),
        ("class_statistics", "mnist", (*_POOL, *_SKEW), 100, 480, 2),
        ("class_statistics", "mnist", (*_POOL, *_SKEW), 100, 480, 8),
        ("class_statistics", "fashion_mnist", (*_POOL, *_SKEW), 100, 480, 4),
        ("class_statistics", "fashion_mnist", (*_POOL, *_SKEW), 100, 480, 8),
        ("privatekt", "mnist", (*_POOL, *_SKEW, "strategy.components=50"), 100, 480, 8),
        ("fedavg", "mnist", (*_POOL, "partition=iid"), 100, 480, 8),
        ("dp_fedavg", "mnist", (*_POOL, "partition=iid"), 100, 480, 8),
        ("dp_fedavg", "mnist", (*_POOL, "partition=iid"), 100, 480, 2),
        ("dp_fedavg", "fashion_mnist", (*_POOL, "partition=iid"), 100, 480, 8),
        ("fedavg", "fashion_mnist", (*_POOL, "partition=iid"), 100, 480, 8),
        ("dpfl_bnn", "digits", ("federation.public=720",), 60, 12, 8),
    ]
}

# Cells of the frontier, which one pilot each predicts as they were chosen there.
FRONTIER = [
    Cell("class statistics", setting, epsilon)
    for setting in (
        "mnist 100, dirichlet 0.1",
        "fashion_mnist 1000, dirichlet 0.5",
        "mnist 1000, dirichlet 0.5",
    )
    for epsilon in (2, 8, 1)
] + [Cell("disjoint", "mnist 1000, dirichlet 0.5", 2)]


def measure(name: str) -> dict[str, object]:
    """Prediction and outcome of one setting."""
    request = SETTINGS[name]
    best = max(advise.tried(request), key=lambda one: one.expected)
    runs = [request.overrides(best.candidate, seed) for seed in range(1, request.pilots + 1)]
    outcomes = [advise.accuracy(words) for words in runs]
    return {
        "name": name,
        "predicted": best.expected,
        "outcome": statistics.mean(outcomes),
        "chosen": list(best.candidate),
    }


def measure_frontier(cell: Cell, done: frontier.Done) -> dict[str, object]:
    """The prediction, by one pilot, for a cell of the frontier whose test rows are ``done``."""
    candidate = frontier.chosen(done, cell)
    assert candidate is not None
    words = cell.tests(candidate)[0].overrides()
    examples = 48_000 // SETTINGS_OF_FRONTIER[cell.setting].clients
    predicted = advise.accuracy([*words, f"federation.pilot={examples}"])
    outcome = statistics.mean(frontier.outcomes(done, cell))
    return {
        "name": cell.name,
        "predicted": predicted,
        "outcome": outcome,
        "chosen": [f"as there: {candidate}"],
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=Path, required=True, metavar="FILE")
    parser.add_argument("--frontier", type=Path, metavar="FILE", help="predict its rows instead")
    parser.add_argument("--show", action="store_true", help="print the table, run nothing")
    arguments = parser.parse_args()
    path: Path = arguments.rows
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = {row["name"]: row for row in map(json.loads, lines)}
    jobs = {name: partial(measure, name) for name in SETTINGS}
    if arguments.frontier is not None:
        known = frontier.load(arguments.frontier)
        jobs = {
            cell.name: partial(measure_frontier, cell, known)
            for cell in FRONTIER
            if frontier.outcomes(known, cell)
        }
    for name, job in ({} if arguments.show else jobs).items():
        if name not in rows:
            rows[name] = job()
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(rows[name]) + "\n")
    print("| setting | predicted | came out | difference | chosen |\n|---|---|---|---|---|")
    for name, row in rows.items():
        gap = row["outcome"] - row["predicted"]
        values = f"{row['predicted']:.3f} | {row['outcome']:.3f} | {gap:+.3f}"
        print(f"| {name} | {values} | `{' '.join(row['chosen'][:3])}` |")


if __name__ == "__main__":
    main()
