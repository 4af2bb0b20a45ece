"""KD-DPFL and its competitors at equal proven ε: ``python -m research.kd_dpfl SETTING``.

Everything but the method is the same: data, partition, model, rounds, seeds. Each row is one run;
rows are appended to OUT/results.jsonl as they end, runs already there are not repeated, and a
table over the seeds is printed at the end. Pseudo-label accuracy needs the labels that the public
pool has lost; they are looked up here, after the run, and no run ever sees them. ``--choose RATE``
compares learning rates instead, on training examples that neither pool nor client has.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import pictures
from benchmarks.runs import RunFile, print_table, run_once, spread
from fl_app.run.validated import ValidatedRun
from murmur.learning.data.examples import split_public
from murmur.learning.public_labels import plurality
from murmur.random import experiment_rng

SETTINGS = {
    "mnist_small": [
        "dataset=mnist",
        "partition=quantity_skew",
        "partition.exponent=null",
        "partition.groups={large:{count:3,size:2000},general:{count:20,size:250}}",
        "federation.num_clients=23",
        "federation.num_rounds=10",
        "federation.public=2000",
        "model.channels=[8,16]",
        "model.hidden=[]",
    ],
    "mnist": [
        "dataset=mnist",
        "partition=quantity_skew",
        "partition.exponent=null",
        "partition.groups={large:{count:5,size:6000},general:{count:40,size:500}}",
        "federation.num_clients=45",
        "federation.num_rounds=30",
        "federation.public=5000",
    ],
    "pneumonia": [
        "dataset=pneumonia_mnist",
        "partition=quantity_skew",
        "partition.exponent=null",
        "partition.groups={large:{count:5,size:600},general:{count:20,size:60}}",
        "federation.num_clients=25",
        "federation.num_rounds=20",
        "federation.public=500",
        "model.channels=[8,16]",
        "model.hidden=[]",
    ],
}
LOTS = {
    "mnist_small": {"local": 125, "special": 500, "teacher": 500},
    "mnist": {"local": 50, "special": 250, "teacher": 250},
    "pneumonia": {"local": 60, "special": 125, "teacher": 150},
}
# One learning rate for all that trains with noise, one for all that trains without.
NOISY = {"mnist_small": 2.0, "mnist": 1.0, "pneumonia": 1.0}
PLAIN = {"mnist_small": 0.5, "mnist": 0.5, "pneumonia": 0.05}
# Without clipping 0.5 diverges on MNIST's Dirichlet shares.
PLAIN_UNEVEN = {"mnist_small": 0.2, "mnist": 0.2, "pneumonia": 0.05}
# The same for the special client where it needs no noise; its batches are small, being free.
PLAIN_SPECIAL = {"mnist_small": 0.2, "mnist": 0.2, "pneumonia": 0.05}
PLAIN_BATCH = 50
VALIDATION = 5000  # examples of --choose; PneumoniaMNIST's pool and clients leave none
METHODS = {
    "KD-DPFL, tight": ["strategy=kd_dpfl", "strategy.spending.mode=tight"],
    "KD-DPFL, conservative, r=1.5": ["strategy=kd_dpfl"],
    "KD-DPFL, conservative, r=1": ["strategy=kd_dpfl", "strategy.spending.ratio=1"],
    "DP-SGD over all clients": ["strategy=dpsgd_fedavg"],
    "general clients only": ["strategy=kd_dpfl", "strategy.spending.special=false"],
    "teacher-vote student": [
        "strategy=kd_dpfl",
        "strategy.spending.mode=tight",
        "strategy.spending.general=false",
    ],
    "NbAFL, dpsgd": ["strategy=nbafl", "privacy.sensitivity=dpsgd"],
    "NbAFL, worst": [
        "strategy=nbafl",
        "privacy.sensitivity=worst",
        "privacy.calibration=proven",
        "strategy.clip=3",
    ],
    "KD-DPFL without protection": [
        "strategy=kd_dpfl",
        "privacy.epsilon=inf",
        "strategy.labelling.mechanism=none",
    ],
    "FedAvg without protection, all clients": ["strategy=dpsgd_fedavg", "privacy.epsilon=inf"],
}


def overrides(
    setting: str, method: str, epsilon: float, alpha: str, seed: int, rate: float | None = None
) -> list[str]:
    """The command line of one run; ``rate`` in place of the learning rates of the tables above."""
    words = ["privacy=paper", f"privacy.epsilon={epsilon:g}", *METHODS[method], *SETTINGS[setting]]
    words += [f"partition.alpha={alpha}", f"seed={seed}", "engine=inline"]
    plain = PLAIN if alpha == "null" else PLAIN_UNEVEN
    rate = rate or (plain if "privacy.epsilon=inf" in words else NOISY)[setting]
    nbafl = "strategy=nbafl" in words
    if nbafl:
        words = [w for w in words if not w.startswith("model.")] + [
            "model=cnn_tanh",
            *[w for w in SETTINGS[setting] if w.startswith("model.")],
        ]
    if "privacy.sensitivity=worst" in words:
        return words
    lot = "batch_size" if nbafl else "lot_size"
    words.append(f"strategy.local.{lot}={LOTS[setting]['local']}")
    words.append(f"strategy.local.learning_rate={rate}")
    if "strategy=kd_dpfl" in words:
        words.append(f"strategy.teacher.learning_rate={rate}")
        words.append(f"strategy.labelling.lot_size={LOTS[setting]['teacher']}")
        noisy = "conservative" in method
        words.append(
            f"strategy.special.lot_size={LOTS[setting]['special'] if noisy else PLAIN_BATCH}"
        )
        words.append(
            f"strategy.special.learning_rate={(NOISY if noisy else PLAIN_SPECIAL)[setting]}"
        )
    return words


def measure(words: list[str], folder: Path) -> dict[str, object]:
    """One run's figures."""
    run = ValidatedRun.of([*words, f"run_dir={folder}"])
    run.run()
    rows, metrics = run.folder.rows(), run.folder.metrics() or {}
    guarantee = json.loads((folder / "privacy.json").read_text())["guarantees"][0]
    sizes = run.population.client_sizes()
    by_group: dict[str, float] = {}
    for client, spent in guarantee["clients"].items():
        group = "large" if client.isdecimal() and sizes[int(client)] == max(sizes) else "general"
        by_group[group] = max(by_group.get(group, 0.0), float(spent))
    return {
        "accuracy": metrics["accuracy"],
        "auc": rows[-1].get("auc"),
        "epsilon_proven": metrics["epsilon_proven"],
        "epsilon_claimed": metrics["epsilon_claimed"],
        "epsilon_by_group": by_group,
        "pseudo_label_accuracy": pseudo_label_accuracy(run),
        "seconds": metrics["seconds"],
    }


def choose(options: argparse.Namespace) -> None:
    """Each method's accuracy on validation data, by learning rate; first seed, ε and partition."""
    file = RunFile(options.out / "chosen.jsonl")
    epsilon, alpha, seed = options.epsilon[0], options.alpha[0], options.seeds[0]
    held_out = [
        f"federation.validation={VALIDATION}",
        "federation.score=validation",
    ]
    lines = []
    for method in options.methods:
        cells = []
        for rate in options.choose:
            words = overrides(options.setting, method, epsilon, alpha, seed, rate)
            words += [*held_out, *options.extra]
            row = file.get({"words": words}, partial(_validate, words))
            cells.append(f"{row['score']:.4f}")
        lines.append([method, *cells])
    print(f"\naccuracy on {VALIDATION} validation examples, ε = {epsilon:g}, seed {seed}\n")
    print_table(["learning rate", *(f"{rate:g}" for rate in options.choose)], lines)


def _validate(words: Sequence[str]) -> dict[str, float]:
    return {"score": run_once(words)["rows"][-1]["accuracy"]}


def pseudo_label_accuracy(run: ValidatedRun) -> float | None:
    """Share of the pseudo-labels that are right; None without any."""
    checkpoint = run.folder.load_checkpoint()
    targets = None if checkpoint is None else checkpoint.run.algorithm.get("targets")
    if targets is None or not len(targets):
        return None
    labels, seed = run.population.dataset.train.labels, run.config.seed
    size = len(run.population.public)
    rng = experiment_rng(seed, "public pool")
    public, _ = split_public(len(labels), size, rng)
    drawn = experiment_rng(seed, "labelled images").choice(size, len(targets), replace=False)
    guesses = plurality(targets, np.random.default_rng(0)).argmax(axis=1)
    return float(np.mean(guesses == labels[public[np.sort(drawn)]]))


def table(rows: list[dict]) -> str:
    """Markdown, one line for each method: mean and, over several seeds, standard deviation."""
    lines = [
        "| method | accuracy | AUC | pseudo-labels right | ε proven: large, general "
        "| ε claimed | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        mine = [row for row in rows if row["method"] == method]
        if not mine:
            continue
        groups = mine[0]["epsilon_by_group"]
        proven = ", ".join(_number(groups.get(group)) for group in ("large", "general"))
        claimed = _number(mine[0]["epsilon_claimed"])
        cells = [_over_runs(mine, key) for key in ("accuracy", "auc", "pseudo_label_accuracy")]
        lines.append(f"| {method} | {' | '.join(cells)} | {proven} | {claimed} | {len(mine)} |")
    return "\n".join(lines)


def draw(setting: str, rows: list[dict], picture: Path) -> None:
    """A row for each method, a mark for each partition; or, for several ε, lines against ε."""
    score, label = ("auc", "AUC") if setting == "pneumonia" else ("accuracy", "accuracy")
    found: dict[str, dict[str, dict[float, list[float]]]] = {}
    for row in sorted(rows, key=lambda row: list(METHODS).index(row["method"])):
        partition = "IID" if row["alpha"] == "null" else f"Dirichlet {row['alpha']}"
        each = found.setdefault(partition, {}).setdefault(row["method"], {})
        each.setdefault(row["epsilon"], []).append(row[score])
    budgets = sorted({row["epsilon"] for row in rows})
    if len(budgets) > 1:
        drawing, panels = pictures.canvas(len(found), height=3.8)
        for axes, (partition, methods) in zip(panels, found.items(), strict=True):
            for method, each in methods.items():
                values = [f"{epsilon:g}" for epsilon in sorted(each)]
                pictures.curve(axes, values, [each[epsilon] for epsilon in sorted(each)], method)
            axes.set(xlabel="ε for the whole run", ylabel=f"{label} on the test set")
            axes.set(title=f"kd_dpfl_{setting}, {partition}", xticks=budgets)
    else:
        drawing, [axes] = pictures.canvas(width=6.5, height=3.6)
        [epsilon] = budgets
        marks = {p: {m: each[epsilon] for m, each in found[p].items()} for p in found}
        pictures.rows(axes, marks)
        axes.set(xlabel=f"{label} on the test set", title=f"kd_dpfl_{setting}, ε = {epsilon:g}")
    pictures.save(drawing, picture)


def _over_runs(rows: list[dict], key: str) -> str:
    values = [row[key] for row in rows if row[key] is not None]
    return spread(values, 3) if values else "–"


def _number(value: object) -> str:
    return "–" if value is None else "∞" if float(str(value)) == float("inf") else f"{value:.2f}"


def main() -> None:
    """Run what is missing, then print a table for each ε and partition."""
    parser = argparse.ArgumentParser(prog="python -m research.kd_dpfl")
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[4.0])
    parser.add_argument("--alpha", nargs="+", default=["null"], help="null: IID; or Dirichlet")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument(
        "--choose", type=float, nargs="+", metavar="RATE", help="compare, on validation data"
    )
    parser.add_argument("--with", dest="extra", nargs="*", default=[], help="more overrides")
    parser.add_argument("--picture", type=Path, help="also draw the tables, as this file")
    options = parser.parse_args()
    if options.choose:
        if options.setting == "pneumonia":
            parser.error("pneumonia: pool and clients leave no examples to choose on")
        choose(options)
        return
    file = RunFile(options.out / "results.jsonl")
    for seed in options.seeds:
        for epsilon in options.epsilon:
            for alpha in options.alpha:
                for method in options.methods:
                    key = {"method": method, "epsilon": epsilon, "alpha": alpha, "seed": seed}
                    words = overrides(options.setting, method, epsilon, alpha, seed)
                    folder = options.out / f"run-{len(file.rows):03d}"
                    file.get(key, partial(measure, [*words, *options.extra], folder))
    rows = file.rows
    for epsilon in options.epsilon:
        for alpha in options.alpha:
            chosen = [r for r in rows if (r["epsilon"], r["alpha"]) == (epsilon, alpha)]
            print(f"\nε = {epsilon:g}, {'IID' if alpha == 'null' else f'Dirichlet {alpha}'}\n")
            print(table(chosen))
    if options.picture is not None:
        asked = {
            "seed": options.seeds,
            "epsilon": options.epsilon,
            "alpha": options.alpha,
            "method": options.methods,
        }
        chosen = [row for row in rows if all(row[key] in asked[key] for key in asked)]
        draw(options.setting, chosen, options.picture)


if __name__ == "__main__":
    main()
