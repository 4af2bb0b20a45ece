"""PrivateKT's ablations and baselines: ``python -m research.privatekt STUDY --out FILE``.

* ``sampling``: images drawn by entropy (eq. 4), in all rounds or after the first, or uniformly.
* ``buffer``: rounds of labels that the server keeps.
* ``self_training``: none; eq. 5 with soft, hard and sharpened targets; and nothing but eq. 5.
* ``epsilon``, ``K``: privacy of a round, and labels of a client in it.
* ``baselines``: FedAvg, every client alone, all data in one place, and no noise.

The authors' federation, budget and step sizes (``experiment=privatekt_mnist``), with an MLP
784-128-10 whose dropout is theirs. Nothing is chosen here: a study shows all of its settings.
Prints Markdown, the mean accuracy of the last five rounds on the test set; every run is a line of
``--out``, and one that is there is not repeated. Needs ``MURMUR_DATA``.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import pictures
from benchmarks.machine import describe_machine
from benchmarks.runs import RunFile, print_table, run_once, spread
from fl_app.run.progress import format_epsilon

CLIENTS = ["federation.num_clients=80", "partition=privatekt_authors", "partition.alpha=0.5"]
MODEL = ["model=mlp", "model.hidden=[128]", "model.dropout=0.2", "federation.public=12000"]
SELF_TRAINING = ["samples=1200", "targets=soft", "passes=1", "learning_rate=0.05", "batch_size=32"]
PRIVATEKT = [
    "strategy=privatekt",
    *CLIENTS,
    "federation.clients_per_round=40",
    "privacy.epsilon=5",
    "privacy=paper",
    "strategy.K=2",
    "strategy.local={epochs:5,batch_size:32,learning_rate:0.05}",
    "strategy.finetuning={passes:4,learning_rate:0.05,batch_size:null}",
    *(f"strategy.self_training.{word}" for word in SELF_TRAINING),
]
SGD = ["strategy.local.batch_size=32", "strategy.local.learning_rate=0.05"]


def _each(key: str, label: str, values: Sequence[str]) -> dict[str, list[str]]:
    return {f"{label} = {value}": [*PRIVATEKT, f"{key}={value}"] for value in values}


STUDIES: Mapping[str, Mapping[str, list[str]]] = {
    "sampling": {
        "by entropy after round 1": PRIVATEKT,
        "by entropy in all rounds": [*PRIVATEKT, "strategy.first_round=entropy"],
        "uniform": [*PRIVATEKT, "strategy.sampling=uniform"],
    },
    "buffer": _each("strategy.buffer_rounds", "B", ("1", "5", "25")),
    "self_training": {
        "none": [*PRIVATEKT, "strategy.self_training.samples=0"],
        "soft targets": PRIVATEKT,
        "hard targets": [*PRIVATEKT, "strategy.self_training.targets=hard"],
        "sharpened targets": [*PRIVATEKT, "strategy.self_training.targets=sharpened"],
        "self-training only": [*PRIVATEKT, "strategy.use_labels=false"],
    },
    "epsilon": _each("privacy.epsilon", "ε", ("1", "2", "5", "10", "inf")),
    "K": _each("strategy.K", "K", ("1", "2", "4", "8")),
    "baselines": {
        "PrivateKT, ε = 5 a round": PRIVATEKT,
        "PrivateKT, no noise": [*PRIVATEKT, "privacy.epsilon=inf"],
        "FedAvg, no protection": [
            "strategy=fedavg",
            *CLIENTS,
            "federation.clients_per_round=40",
            *SGD,
        ],
        "FedAvg, each client's own noise, ε = 47.4 for the run": [
            "strategy=fedavg",
            "protection=distributed",
            "privacy=local",
            "privacy.threat=local",
            "privacy.epsilon=47.4",  # what 33 uploads at ε = 5 each add up to
            *CLIENTS,
            "federation.clients_per_round=40",
            *SGD,
        ],
        "every client alone": [
            "strategy=local_only",
            *CLIENTS,
            "federation.num_rounds=1",
            "strategy.local.epochs=20",
            *SGD,
        ],
        "all data in one place": ["strategy=centralised", "federation.num_rounds=20", *SGD],
    },
}


def measure(words: Sequence[str], shared: Sequence[str], seed: int) -> dict[str, Any]:
    """Accuracy after each round, and what was proven, of one run; ``shared`` words come first."""
    run = run_once([*shared, *words, f"seed={seed}"])
    rows = [row for row in run["rows"] if row["round"] and "accuracy" in row]
    return {
        "round": [row["round"] for row in rows],
        "accuracy": [row["accuracy"] for row in rows],
        "epsilon_proven": run["metrics"].get("epsilon_proven"),
        "seconds": run["seconds"],
    }


def final(run: Mapping[str, Any]) -> float:
    """Mean over the last five rounds."""
    return statistics.mean(run["accuracy"][-5:])


def draw(study: str, found: Mapping[str, Sequence[dict[str, Any]]], title: str, file: Path) -> None:
    """Accuracy over rounds, a line for each setting; of ``baselines`` the ends alone."""
    if study == "baselines":
        drawing, [axes] = pictures.canvas(width=6.5)
        pictures.rows(
            axes, {"": {name: [final(run) for run in runs] for name, runs in found.items()}}
        )
        axes.set(xlabel="accuracy on the test set", title=title)
    else:
        drawing, [axes] = pictures.canvas(width=6)
        for name, runs in found.items():
            samples = list(zip(*(run["accuracy"] for run in runs), strict=True))
            pictures.band(axes, runs[0]["round"], samples, name)
        axes.set(xlabel="round", ylabel="accuracy on the test set", title=title)
    pictures.save(drawing, file)


def main() -> None:
    """Run what is missing, print the table, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--dataset", choices=("mnist", "fashion_mnist"), default="mnist")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, required=True, help="file of the runs")
    parser.add_argument("--picture", type=Path, help="also draw the study, as this file")
    options = parser.parse_args()
    file = RunFile(options.out)
    shared = [f"dataset={options.dataset}", f"federation.num_rounds={options.rounds}", *MODEL]
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in options.seeds:
        for name, words in STUDIES[options.study].items():
            key = {"words": [*shared, *words], "seed": seed}
            run = file.get(key, partial(measure, words, shared, seed))
            found.setdefault(name, []).append(run)
    print()
    print_table(
        ["", "accuracy", "ε proven", "seconds"],
        [
            [
                name,
                spread([final(run) for run in runs], 3),
                format_epsilon(runs[0]["epsilon_proven"]),
                f"{statistics.median(run['seconds'] for run in runs):.0f}",
            ]
            for name, runs in found.items()
        ],
    )
    print(f"\n{options.rounds} rounds, seeds {options.seeds}; {describe_machine('torch')}")
    if options.picture is not None:
        title = f"PrivateKT, {options.dataset}, {options.study.replace('_', '-')}"
        draw(options.study, found, title, options.picture)


if __name__ == "__main__":
    main()
