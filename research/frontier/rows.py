"""What the frontier measures: settings, ways to learn, and a run of Murmur for each row.

A row is METHOD | SETTING | ε | SEED. ``docs/frontier.md`` says how settings were chosen.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_app.config.building import build
from fl_app.config.composition import compose
from fl_app.run.results import RunFolder
from research.frontier import candidates as frontier_candidates

EPSILONS = (*frontier_candidates.EPSILONS, math.inf)
SEEDS = (1, 2, 3)
SPLITS = {"iid": ("partition=iid",)} | {
    f"dirichlet {a}": ("partition=dirichlet", f"partition.alpha={a}") for a in (0.5, 0.1)
}
LINEAR = ["features=scattering", "features.components=400", "model=linear"]


@dataclass(frozen=True)
class Setting:
    """``clients`` of ``data``, their words; components of the features, graph and local models."""

    name: str
    data: str
    clients: int
    words: tuple[str, ...]
    features: int = 400
    graph: int = 200
    local: int | str = 50

    def overrides(self) -> list[str]:
        """What every run of it has in common."""
        words = [f"dataset={self.data}", f"federation.num_clients={self.clients}", *self.words]
        return [*words, f"features.components={self.features}"]

    def sums(self) -> list[str]:
        """A budget against a server that sees sums: 10% drop out, 5% collude.

        The sum holds the noise of 90% of the cohort less colluders, whoever really drops out.
        """
        return [
            "privacy.threat=secure_aggregation",
            "privacy.secure_aggregation=simulated",
            "privacy.secure_sum.minimum=0.9",
            f"privacy.secure_sum.colluders={round(self.clients * 0.05)}",
        ]


def _settings() -> list[Setting]:
    digits = ("federation.public=360",)
    made = [
        Setting(f"digits 60, {name}", "digits", 60, (*digits, *SPLITS[name]), 30, 30, "null")
        for name in ("iid", "dirichlet 0.5")
    ]
    for data in ("mnist", "fashion_mnist"):
        made += [
            Setting(
                f"{data} {clients}, {name}",
                data,
                clients,
                # 48,000 are shared out: 48 or 480 for each client.
                ("federation.public=10000", "federation.validation=2000", *words),
            )
            for clients in (1000, 100)
            for name, words in SPLITS.items()
        ]
    small = ("federation.public=1000", "federation.validation=2000", *SPLITS["dirichlet 0.5"])
    made.append(Setting("mnist 1000, dirichlet 0.5, pool of 1000", "mnist", 1000, small))
    hospitals = ("federation.public=500", "federation.validation=500", "partition=iid")
    made.append(Setting("pneumonia_mnist 25", "pneumonia_mnist", 25, hospitals, 100))
    return made


SETTINGS = {setting.name: setting for setting in _settings()}


def _class_statistics(setting: Setting, epsilon: float) -> list[str]:
    graph = f"strategy.spreading.components={setting.graph}"
    return ["strategy=class_statistics", *setting.sums(), "federation.num_rounds=1", graph]


def _privatekt(setting: Setting) -> list[str]:
    return [
        "strategy=privatekt",
        *LINEAR,
        "federation.num_rounds=1",
        "strategy.learner=ridge",
        "strategy.target=posterior",
        f"strategy.components={setting.local}",
        f"strategy.spreading={{components:{setting.graph}}}",
    ]


def _votes(setting: Setting, epsilon: float) -> list[str]:
    images = 80 if setting.data == "digits" else 500
    words = ["strategy=votes", *_privatekt(setting)[1:]]
    return [*words, *setting.sums(), f"strategy.K={images}"]


def _disjoint(setting: Setting, epsilon: float) -> list[str]:
    words = ["strategy.answers=disjoint", "strategy.K=1", "strategy.refits=3"]
    return [*_privatekt(setting), "privacy.threat=local", *words]


def _averaging(setting: Setting) -> list[str]:
    """Ten rounds in which every client trains the linear model on features."""
    local = "strategy.local={epochs:1,steps:null,batch_size:16,learning_rate:3.0}"
    return [*LINEAR, "federation.num_rounds=10", local]


def _averaged(setting: Setting, epsilon: float) -> list[str]:
    noise = ["protection=distributed", "privacy=local", "protection.clipping.norm=5.0"]
    return ["strategy=fedavg", *noise, *setting.sums(), *_averaging(setting)]


def _dp_fedavg(setting: Setting, epsilon: float) -> list[str]:
    # Everybody in every round: there is no cohort whose secrecy would have to be assumed.
    words = ["strategy=dp_fedavg", "federation.schedule=rotate", "protection.clipping.norm=5.0"]
    return [*words, *_averaging(setting)]


def _fedavg(setting: Setting, epsilon: float) -> list[str]:
    return ["strategy=fedavg", *_averaging(setting)]


def _centralised(setting: Setting, epsilon: float) -> list[str]:
    return ["strategy=centralised", *_averaging(setting), "federation.num_clients=1"]


def _dpsgd(setting: Setting, epsilon: float) -> list[str]:
    local = "strategy.local={epochs:10,lot_size:200,clipping_norm:1.0,learning_rate:4.0}"
    return ["strategy=dpsgd_fedavg", "privacy=paper", *LINEAR, "federation.num_rounds=5", local]


@dataclass(frozen=True)
class Method:
    """``words`` of a run at a setting and ε; the ``panel`` it belongs to; the statement's threat.

    ``only``: the only setting that it is for; None: all but that.
    """

    words: Callable[[Setting, float], list[str]]
    panel: str
    threat: str
    only: str | None = None


PANELS = ("sums only", "local", "trusted server", "records, local", "no protection")
METHODS = {
    "class statistics": Method(_class_statistics, "sums only", "secure_aggregation"),
    "votes": Method(_votes, "sums only", "secure_aggregation"),
    "averaged updates": Method(_averaged, "sums only", "secure_aggregation"),
    "disjoint": Method(_disjoint, "local", "local"),
    "DP-FedAvg": Method(_dp_fedavg, "trusted server", "central"),
    "FedAvg": Method(_fedavg, "no protection", "local"),
    "centralised": Method(_centralised, "no protection", "local"),
    "DP-SGD": Method(_dpsgd, "records, local", "local", "pneumonia_mnist 25"),
}


@dataclass(frozen=True)
class Row:
    """One run."""

    method: str
    setting: str
    epsilon: float
    seed: int

    @property
    def name(self) -> str:
        """What identifies it in a file of rows."""
        return f"{self.method} | {self.setting} | {self.epsilon:g} | {self.seed}"

    def overrides(self, more: list[str] | None = None) -> list[str]:
        """The words of its run."""
        setting = SETTINGS[self.setting]
        budget = [f"privacy.epsilon={self.epsilon:g}", f"seed={self.seed}"]
        quick = ["engine=inline", "tracking=none", "keep_checkpoints=false"]
        words = METHODS[self.method].words(setting, self.epsilon)
        words = [words[0], *setting.overrides(), *words[1:]]  # a reference has its own clients
        words += frontier_candidates.chosen(
            self.method, self.setting, setting.clients, self.epsilon
        )
        return [*words, *budget, *(more or []), *quick]

    def run(self, more: list[str] | None = None) -> dict[str, Any]:
        """Its figures: accuracy on the test set, ε of the statement, bytes and seconds."""
        words, started = self.overrides(more), time.perf_counter()
        metrics, guarantees = run_once(words)
        proven = next(g for g in guarantees if g["threat"] == METHODS[self.method].threat)
        return {
            "name": self.name,
            "accuracy": metrics["accuracy"],
            "epsilon_of_statement": proven["assumed_total"] or proven["proven_total"],
            "seconds": round(time.perf_counter() - started, 1),
            "bytes_up_per_client": metrics["bytes_up"] // SETTINGS[self.setting].clients,
            "overrides": words,
        }


def run_once(words: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Metrics of one run in this process, and the guarantees of its statement."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "run")
        words = [*words, f"run_dir={run.path}"]
        build(compose(words).engine, "engine").run(words, run)
        metrics = run.metrics()
        assert metrics is not None
        return metrics, json.loads((run.path / "privacy.json").read_text())["guarantees"]


def rows(only: str = "") -> Iterator[Row]:
    """All rows, seed by seed, so that what is interrupted has something of everything."""
    for seed in SEEDS:
        for setting in SETTINGS:
            for name, method in METHODS.items():
                unprotected = method.panel == "no protection"
                hospitals = SETTINGS[setting].data == "pneumonia_mnist"
                if (method.only or setting) != setting or (
                    hospitals and method.only is None and not unprotected
                ):
                    continue
                for epsilon in EPSILONS[-1:] if unprotected else EPSILONS:
                    row = Row(name, setting, epsilon, seed)
                    if re.search(only, row.name):
                        yield row
