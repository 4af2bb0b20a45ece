"""DPFL-BNN's figures, one command each: ``python -m benchmarks.dpfl_bnn WHAT``. Prints Markdown.

* ``golden``: the privacy table of the specification, recomputed, and how long that takes.
* ``gamma``: the γ that meets ε = 8 over 100 rounds, by threat model.
* ``shrinkage``: does less γ help because of the noise, or because the mean shrinks?
* ``accuracy``: MNIST, IID, 100 clients: mean accuracy over all clients' models for each γ.
* ``budgeted``: 1,000 clients at a proven ε of 8, by few full rounds and by Hamming clipping.
* ``wire``: bytes of one client's messages in one round, measured, against the table.

The last four run the house itself, in this process, and need ``MURMUR_DATA``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import pictures
from benchmarks.pictures import canvas, curve, save
from fl_app.engines.inline import InlineEngine
from fl_app.run.progress import show_epsilon
from fl_app.run.results import RunFolder
from privacy.accounting import Threat, View, epsilon
from privacy.accounting.bits import epsilon_of_bit
from privacy.accounting.calibrate import bits_gamma
from privacy.accounting.flatten import flatten
from privacy.accounting.rdp import epsilon as renyi_epsilon
from privacy.accounting.rdp_conversion import to_epsilon_mironov
from privacy.events import Event, RandomizedBitsEvent, RepeatedEvent, SecurelySummedEvent
from schemes.dpfl_bnn.claim import claimed_epsilon, claimed_gamma

BITS, ROUNDS, CLIENTS, DELTA = 81_958, 100, 100, 1e-5
GAMMAS = (0.1, 0.2, 0.3, 0.4)
GOLDEN = {
    "ε0": (0.4055, 0.8473, 1.3863, 2.1972),
    "claimed (theorem 1)": (28.31, 83.34, 180.92, 361.83),
    "one bit, exact T-fold": (23.65, 63.93, 124.21, 219.25),
    "local, RDP, one round": (7_191, 28_841, 69_688, 145_862),
    "local, RDP, T=100": (670_079, 2_788_379, 6_832_304, 14_424_508),
    "secure aggregation, one round": (124.6, 434.9, 1_149.7, 3_500.9),
    "secure aggregation, T=100": (7_401, 32_627, 96_079, 315_001),
}


def golden() -> None:
    """The table, each figure beside its golden value's relative error."""
    started = time.perf_counter()
    rows = []
    for name, expected in GOLDEN.items():
        found = [_privacy(name, gamma) for gamma in GAMMAS]
        errors = [f / e - 1 for f, e in zip(found, expected, strict=True)]
        rows.append(
            [name, *(f"{f:,.4g}" if f < 10 else f"{f:,.2f}" for f in found), _worst(errors)]
        )
    seconds = time.perf_counter() - started
    _table(["", *(f"γ={gamma}" for gamma in GAMMAS), "largest error"], rows)
    print(f"\nd={BITS:,}, T={ROUNDS}, n={CLIENTS}, δ={DELTA:g}; computed in {seconds:.1f} s")


def _privacy(name: str, gamma: float) -> float:
    vector = RandomizedBitsEvent(gamma, BITS, BITS)
    summed = SecurelySummedEvent(vector, CLIENTS)
    match name:
        case "ε0":
            return epsilon_of_bit(gamma)
        case "claimed (theorem 1)":
            return claimed_epsilon(gamma, ROUNDS, DELTA)
        case "one bit, exact T-fold":
            bit = RepeatedEvent(RandomizedBitsEvent(gamma, 1, 1), ROUNDS)
            return epsilon(bit, DELTA).bounds["exact"]
        case "local, RDP, one round":
            return _renyi(vector, Threat.LOCAL)
        case "local, RDP, T=100":
            return _renyi(RepeatedEvent(vector, ROUNDS), Threat.LOCAL)
        case "secure aggregation, one round":
            return _renyi(summed, Threat.SECURE_AGGREGATION)
        case _:
            return _renyi(RepeatedEvent(summed, ROUNDS), Threat.SECURE_AGGREGATION)


def _renyi(event: Event, threat: Threat) -> float:
    leaves = flatten(event, View(threat))
    return renyi_epsilon(leaves, DELTA, to_epsilon_mironov)


def gamma() -> None:
    """Calibration by the paper's conversion, as in the specification, and by the best bound."""
    target, rows = 8.0, []
    claimed = claimed_gamma(target, ROUNDS, DELTA)
    rows.append(["claimed (theorem 1)", f"{claimed:.4g}", "0.0366", ""])
    for threat, clients, expected in (
        (Threat.LOCAL, 1, "1.265e-4"),
        (Threat.SECURE_AGGREGATION, CLIENTS, "1.265e-3"),
    ):
        paper = bits_gamma(
            target, DELTA, BITS, ROUNDS, threat, clients, conversion=to_epsilon_mironov
        )
        best = bits_gamma(target, DELTA, BITS, ROUNDS, threat, clients)
        rows.append([str(threat), f"{paper:.4g}", expected, f"{best:.4g}"])
    _table([f"γ for ε={target:g}, T={ROUNDS}", "found", "specified", "best proven bound"], rows)


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
            runs = [_run("dpfl_bnn_shrinkage", rounds, seed, extra) for seed in seeds]
            found[name] = [run["rows"][-1]["accuracy"] for run in runs]
            signs = [run["rows"][-1]["accuracy_server_signs"] for run in runs]
            cells.append(f"{_spread(found[name])} ({statistics.mean(signs):.4f})")
        rows.append([name, *cells])
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print()
    _table(["", *own], rows)
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
    out.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    for seed in seeds:
        for name in gammas:
            key = {
                "experiment": experiment,
                "gamma": name,
                "rounds": rounds,
                "seed": seed,
                "words": list(words),
            }
            if any(key.items() <= row.items() for row in done):
                continue
            noise = "strategy.noise=false" if name == "none" else f"strategy.gamma={name}"
            run = _run(experiment, rounds, seed, [noise, *words])
            row = {**key, **run["rows"][-1], "guarantees": run["guarantees"]}
            done.append(row | {"seconds": run["seconds"]})
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[-1]) + "\n")
            print(name, seed, row["accuracy"], row["accuracy_server_signs"], flush=True)
    chosen = {"experiment": experiment, "rounds": rounds, "words": list(words)}
    done = [row for row in done if chosen.items() <= row.items() and row["seed"] in seeds]
    print()
    head = ["γ", "own", "server's signs", "ε claimed", "ε if summed by honest", "ε proven"]
    _table([*head, "seeds"], [_over_seeds(done, name) for name in gammas])
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
        _spread([row["accuracy"] for row in mine]),
        _spread([row["accuracy_server_signs"] for row in mine]),
        show_epsilon(summed["claimed_total"]),
        show_epsilon(summed["assumed_total"]),
        show_epsilon(local["proven_total"]),
        str(len(mine)),
    ]


def _spread(values: Sequence[float]) -> str:
    """Mean and, of several, standard deviation."""
    mean = f"{statistics.mean(values):.4f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.4f}"


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
            run = _run("dpfl_bnn_budgeted", rounds, seed, [*overrides, *words])
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
        run = _run("dpfl_bnn_mnist_iid", 1, 1, extra, nodes=CLIENTS)
        row = run["rows"][-1]
        rows.append(
            [name, f"{row['bytes_up'] / CLIENTS:,.0f}", f"{row['bytes_down'] / CLIENTS:,.0f}"]
        )
    rows.append(["fp32 (computed)", f"{4 * BITS:,}", f"{4 * BITS:,}"])
    _table(["bytes per client and round, n=100, d=81,958", "up", "down"], rows)


def _run(
    experiment: str, rounds: int | None, seed: int, extra: list[str], nodes: int = 1
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as parent:
        folder = RunFolder(Path(parent) / "run")
        words = [f"experiment={experiment}", f"seed={seed}", f"run_dir={folder.path}", *extra]
        words += [] if rounds is None else [f"federation.num_rounds={rounds}"]
        started = time.perf_counter()
        InlineEngine(workers=1, nodes=nodes).run(words, folder)
        return {
            "rows": folder.rows(),
            "guarantees": folder.guarantees(),
            "seconds": time.perf_counter() - started,
        }


def _worst(errors: Iterable[float]) -> str:
    return f"{max(map(abs, errors)):.3%}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def main() -> None:
    """One study by name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("golden", "gamma", "wire"):
        commands.add_parser(name)
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
        "golden": golden,
        "gamma": gamma,
        "wire": wire,
        "shrinkage": shrinkage,
        "accuracy": accuracy,
        "budgeted": budgeted,
    }
    studies[chosen.pop("what")](**chosen)


if __name__ == "__main__":
    main()
