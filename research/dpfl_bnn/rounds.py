"""DPFL-BNN's accuracy over rounds, for each γ: ``python -m research.dpfl_bnn.rounds``.

The figure of Liu et al. 2023 with three controls that it lacks: γ = 0, where every bit is a coin;
no noise; and no noise but the mean shrunk as γ = 0.1 shrinks it. Prints Markdown. A panel for each
learning rate, a line for each setting. Every run is a line of the file ``--out``; a run that is
there is not repeated. Needs ``MURMUR_DATA``.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.pictures import band, canvas, save
from benchmarks.runs import RunFile, print_table, spread
from research.dpfl_bnn.figures import GAMMAS, experiment_run

NO_NOISE = "strategy.noise=false"
SETTINGS = {
    "no noise": [NO_NOISE],
    "no noise, mean × 0.2": [NO_NOISE, "strategy.scale_only=true", "strategy.gamma=0.1"],
    **{f"γ = {gamma}": [f"strategy.gamma={gamma}"] for gamma in GAMMAS},
    "γ = 0": [
        "strategy.gamma=1e-6"
    ],  # the least that is accepted: a bit is right 50.0001% of times
}


def run_missing(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The runs asked for, done now or read from the file."""
    file, wanted = RunFile(options.out), []
    for rate in options.rates:
        for seed in options.seeds:
            for name in options.settings:
                key = {
                    "experiment": options.experiment,
                    "setting": name,
                    "rate": rate,
                    "rounds": options.rounds,
                    "seed": seed,
                    "words": list(options.words),
                }
                wanted.append(file.get(key, partial(_measure, key)))
    return wanted


def _measure(key: dict[str, Any]) -> dict[str, Any]:
    extra = [
        *SETTINGS[key["setting"]],
        f"strategy.local.learning_rate={key['rate']}",
        "strategy.evaluate_every=1",
        *key["words"],
    ]
    run = experiment_run(key["experiment"], key["rounds"], key["seed"], extra)
    rows = [row for row in run["rows"] if "accuracy" in row]
    return {
        "round": [row["round"] for row in rows],
        "accuracy": [row["accuracy"] for row in rows],
        "signs": [row["accuracy_server_signs"] for row in rows],
        "seconds": run["seconds"],
    }


def draw(rows: Sequence[dict[str, Any]], rates: Sequence[float], title: str, file: Path) -> None:
    """Clients' own models after each round, mean over seeds, least to most."""
    figure, panels = canvas(len(rates), height=3.6)
    for axes, rate in zip(panels, rates, strict=True):
        mine = [row for row in rows if row["rate"] == rate]
        for name in dict.fromkeys(row["setting"] for row in mine):
            runs = [row for row in mine if row["setting"] == name]
            samples = list(zip(*(row["accuracy"] for row in runs), strict=True))
            band(axes, runs[0]["round"], samples, name)
        axes.set(xlabel="round", ylabel="accuracy on the test set, clients' own models")
        axes.set(title=f"{title}, learning rate {rate:g}")
    save(figure, file)


def main() -> None:
    """Run what is missing, print the last round, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiment", default="dpfl_bnn_mnist_iid")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--set", dest="words", nargs="*", default=[], metavar="KEY=VALUE", help="of every run"
    )
    parser.add_argument("--out", type=Path, required=True, help="file of the runs")
    parser.add_argument("--picture", type=Path, help="also draw the rounds, as this file")
    options = parser.parse_args()
    rows = run_missing(options)
    lines = []
    for name in options.settings:
        cells = []
        for rate in options.rates:
            mine = [row for row in rows if (row["setting"], row["rate"]) == (name, rate)]
            signs = statistics.mean(row["signs"][-1] for row in mine)
            cells.append(f"{spread([row['accuracy'][-1] for row in mine])} ({signs:.4f})")
        lines.append([name, *cells])
    print()
    print_table(["own (signs)", *(f"learning rate {rate:g}" for rate in options.rates)], lines)
    seconds = statistics.median(row["seconds"] for row in rows)
    print(f"\n{len(rows)} runs of {seconds:.0f} s each (median), one thread")
    print(describe_machine("torch"))
    if options.picture is not None:
        draw(rows, options.rates, options.experiment, options.picture)


if __name__ == "__main__":
    main()
