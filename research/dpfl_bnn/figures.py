"""DPFL-BNN's figures, one command each.

``python -m research.dpfl_bnn.figures WHAT`` prints Markdown:

* ``shrinkage``: does less γ help because of the noise, or because the mean shrinks?
* ``accuracy``: MNIST, IID, 100 clients: mean accuracy over all clients' models for each γ.
* ``budgeted``: 1,000 clients at a proven ε of 8, by few full rounds and by Hamming clipping.
* ``wire``: bytes of one client's messages in one round, measured, against the table.

All run the house itself, in this process, and need ``MURMUR_DATA``. Accuracy over rounds is drawn
by ``research.dpfl_bnn.rounds``, what is proven by ``research.dpfl_bnn.privacy``.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import pictures
from benchmarks.pictures import canvas, curve, save
from benchmarks.runs import RunFile, print_table, run_once, spread
from fl_app.run.progress import format_epsilon

BITS, CLIENTS = 81_958, 100
GAMMAS = (0.1, 0.2, 0.3, 0.4)


def shrinkage(
    rounds: int | None, seeds: Sequence[int], words: Sequence[str], picture: Path | None
) -> None:
    """Noise, scale only and debiased, at two learning rates."""
    controls = {
        "no noise": ["strategy.noise=false"],
        "γ=0.2": ["strategy.gamma=0.2"],
        "γ=0.1": ["strategy.gamma=0.1"],
        "no noise, mean × 0.2": ["strategy.noise=false", "strategy.scale_only=true"],
        "γ=0.1, debiased": ["strategy.debias=true"],
        "γ=0.1, stochastic bits": ["strategy.upload=stochastic"],
    }
    own: dict[str, dict[str, list[float]]] = {f"learning rate {rate}": {} for rate in (0.01, 0.1)}
    rows = []
    for name, overrides in controls.items():
        cells = []
        for rate, found in own.items():
            lr = f"strategy.local.learning_rate={rate.split()[-1]}"
            extra = [*overrides, lr, *words]
            runs = [experiment_run("dpfl_bnn_shrinkage", rounds, seed, extra) for seed in seeds]
            found[name] = [run["rows"][-1]["accuracy"] for run in runs]
            signs = [run["rows"][-1]["accuracy_server_signs"] for run in runs]
            cells.append(f"{spread(found[name])} ({statistics.mean(signs):.4f})")
        rows.append([name, *cells])
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print()
    print_table(["", *own], rows)
    _draw_rows("dpfl_bnn_shrinkage", own, picture)


def accuracy(
    experiment: str,
    gammas: Sequence[str],
    out: Path,
    rounds: int | None,
    seeds: Sequence[int],
    words: Sequence[str],
    picture: Path | None,
) -> None:
    """Mean over all clients' own models after the last round, for each γ.

    Every run is a line of the file ``out``; a run that is there is not repeated.
    """
    file = RunFile(out)
    done = []
    for seed in seeds:
        for name in gammas:
            noise = "strategy.noise=false" if name == "none" else f"strategy.gamma={name}"
            key = {
                "experiment": experiment,
                "gamma": name,
                "rounds": rounds,
                "seed": seed,
                "words": list(words),
            }
            extra = [noise, *words]
            done.append(file.get(key, partial(_last, experiment, rounds, seed, extra)))
    print()
    head = ["γ", "own", "server's signs", "ε claimed", "ε if summed by honest", "ε proven"]
    print_table([*head, "seeds"], [_over_seeds(done, name) for name in gammas])
    if picture is not None:
        _draw(experiment, gammas, done, picture)


def _draw(
    experiment: str, gammas: Sequence[str], done: Sequence[dict[str, Any]], picture: Path
) -> None:
    """Accuracy against γ; without noise a bit is kept for sure, which is γ = ½, the last place."""
    ordered = sorted(gammas, key=lambda name: (name == "none", name))
    drawing, [axes] = canvas()
    for what, label in (
        ("accuracy", "clients' own models"),
        ("accuracy_server_signs", "server's signs"),
    ):
        samples = [[row[what] for row in done if row["gamma"] == name] for name in ordered]
        curve(axes, ["no noise" if n == "none" else n for n in ordered], samples, label)
    axes.set(xlabel="γ", ylabel="accuracy on the test set", title=experiment)
    save(drawing, picture)


def _draw_rows(
    experiment: str, columns: dict[str, dict[str, list[float]]], picture: Path | None
) -> None:
    """A row for each setting; nothing without a ``picture``."""
    if picture is None:
        return
    drawing, [axes] = canvas(width=6.5)
    pictures.rows(axes, columns)
    axes.set(xlabel="accuracy on the test set, clients' own models", title=experiment)
    save(drawing, picture)


def _over_seeds(done: Sequence[dict[str, Any]], gamma: str) -> list[str]:
    """A line of the table: the runs with one γ."""
    mine = [row for row in done if row["gamma"] == gamma]
    guarantees = {g["threat"]: g for g in mine[0]["guarantees"]}
    summed, local = guarantees["secure_aggregation"], guarantees["local"]
    return [
        gamma,
        spread([row["accuracy"] for row in mine]),
        spread([row["accuracy_server_signs"] for row in mine]),
        format_epsilon(summed["claimed_total"]),
        format_epsilon(summed["assumed_total"]),
        format_epsilon(local["proven_total"]),
        str(len(mine)),
    ]


def budgeted(
    rounds: int | None, seeds: Sequence[int], words: Sequence[str], picture: Path | None
) -> None:
    """1,000 clients at ε = 8 under secure aggregation, beside Hamming clipping and controls."""
    free = ["privacy.epsilon=inf", "strategy.debias=false"]
    own: dict[str, list[float]] = {}
    for name, overrides in {
        "few rounds, all bits": [],
        "20 rounds, Hamming k=250": [
            "federation.num_rounds=20",
            "strategy.local.steps=3",
            "strategy.debias=false",
            "strategy.beta=0.3",
            "strategy.budget.hamming=250",
        ],
        "few rounds, no noise": [*free, "strategy.noise=false"],
        "every client alone": [*free, "strategy.noise=false", "strategy.beta=0"],
    }.items():
        for seed in seeds:
            run = experiment_run("dpfl_bnn_budgeted", rounds, seed, [*overrides, *words])
            summed = next(g for g in run["guarantees"] if g["threat"] == "secure_aggregation")
            row = run["rows"][-1]
            own.setdefault(name, []).append(row["accuracy"])
            print(
                f"| {name} | {summed['assumed_total']} | {row['accuracy']:.4f} "
                f"({row['accuracy_server_signs']:.4f}) | {run['seconds']:.0f} s |",
                flush=True,
            )
    _draw_rows("dpfl_bnn_budgeted, proven ε of 8", {"": own}, picture)


def wire() -> None:
    """One client's messages in one round, as Flower carries them."""
    rows = []
    for name, mode, overrides in (
        ("packed bits, no secure aggregation", "off", []),
        ("secure aggregation", "on", []),
        ("half of the weights masked out", "off", ["strategy.budget.mask=0.5"]),
    ):
        extra = [
            f"privacy.secure_aggregation={mode}",
            f"federation.num_clients={CLIENTS}",
            "strategy.local.steps=1",
            "strategy.evaluate_examples=10",
            "model.bias=true",
            *overrides,
        ]
        run = experiment_run("dpfl_bnn_mnist_iid", 1, 1, extra, nodes=CLIENTS)
        row = run["rows"][-1]
        rows.append(
            [name, f"{row['bytes_up'] / CLIENTS:,.0f}", f"{row['bytes_down'] / CLIENTS:,.0f}"]
        )
    rows.append(["fp32 (computed)", f"{4 * BITS:,}", f"{4 * BITS:,}"])
    print_table(["bytes per client and round, n=100, d=81,958", "up", "down"], rows)


def experiment_run(
    experiment: str, rounds: int | None, seed: int, extra: Sequence[str], nodes: int = 1
) -> dict[str, Any]:
    """A run of ``experiment``, for so many ``rounds`` or for its own."""
    words = [f"experiment={experiment}", f"seed={seed}", *extra]
    words += [] if rounds is None else [f"federation.num_rounds={rounds}"]
    return run_once(words, nodes)


def _last(experiment: str, rounds: int | None, seed: int, extra: Sequence[str]) -> dict[str, Any]:
    run = experiment_run(experiment, rounds, seed, extra)
    return {**run["rows"][-1], "guarantees": run["guarantees"], "seconds": run["seconds"]}


def main() -> None:
    """One study by name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("wire")
    for name in ("shrinkage", "accuracy", "budgeted"):
        command = commands.add_parser(name)
        command.add_argument("--rounds", type=int, help="default: the experiment's own")
        command.add_argument("--seeds", type=int, nargs="+", default=[1])
        command.add_argument(
            "--set", dest="words", nargs="*", default=[], metavar="KEY=VALUE", help="of every run"
        )
        command.add_argument("--picture", type=Path, help="also draw the table, as this file")
        if name == "accuracy":
            command.add_argument("--experiment", default="dpfl_bnn_mnist_iid")
            command.add_argument("--gammas", nargs="+", default=["none", *map(str, GAMMAS)])
            command.add_argument("--out", type=Path, required=True, help="file of the runs")
    chosen = vars(parser.parse_args())
    studies: dict[str, Callable[..., None]] = {
        "wire": wire,
        "shrinkage": shrinkage,
        "accuracy": accuracy,
        "budgeted": budgeted,
    }
    studies[chosen.pop("what")](**chosen)


if __name__ == "__main__":
    main()
