"""What the frontier measures: settings, ways to learn, and a run of Murmur for each row.

A row is METHOD | SETTING | ε | SEED | CANDIDATE | DATA, where the data are ``validation`` or
``test``. ``research.frontier.candidates`` has the candidates.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fl_app.config.compose import compose
from fl_app.run.validated import ValidatedRun
from research.frontier.candidates import Candidates, candidates
from research.owners.rounds import Direct

EPSILONS = (1, 8, 2, 4, math.inf)  # in the order of measuring
SEEDS = (1, 2, 3)
SPLITS = {"iid": ("partition=iid",)} | {
    f"dirichlet {a}": ("partition=dirichlet", f"partition.alpha={a}") for a in (0.5, 0.1)
}
LINEAR = ["features=scattering", "model=linear"]  # of the setting's number of features


@dataclass(frozen=True)
class Setting:
    """``clients`` of ``data``, their words; components of the features and of the pool's graph."""

    name: str
    data: str
    clients: int
    words: tuple[str, ...]
    features: int = 400
    graph: int = 200

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
    digits = ("federation.public=360", "federation.validation=200")
    made = [
        Setting(f"digits 60, {name}", "digits", 60, (*digits, *SPLITS[name]), 30, 30)
        for name in ("iid", "dirichlet 0.5")
    ]
    images = ("federation.public=10000", "federation.validation=2000")
    made += [
        # 48,000 are shared out: 48 or 480 for each client.
        Setting(f"{data} {clients}, {name}", data, clients, (*images, *SPLITS[name]))
        for data in ("mnist", "fashion_mnist")
        for clients, name in ((1000, "dirichlet 0.5"), (100, "dirichlet 0.1"))
    ]
    hospitals = ("federation.public=500", "federation.validation=500", "partition=iid")
    made.append(Setting("pneumonia_mnist 25", "pneumonia_mnist", 25, hospitals, 100))
    return made


SETTINGS = {setting.name: setting for setting in _settings()}


def _class_statistics(setting: Setting) -> list[str]:
    graph = f"strategy.spreading.components={setting.graph}"
    return ["strategy=class_statistics", *setting.sums(), "federation.num_rounds=1", graph]


def _privatekt(setting: Setting) -> list[str]:
    return [
        "strategy=privatekt",
        *LINEAR,
        "federation.num_rounds=1",
        "strategy.learner=ridge",
        "strategy.target=posterior",
        f"strategy.spreading={{components:{setting.graph}}}",
    ]


def _votes(setting: Setting) -> list[str]:
    return ["strategy=votes", *_privatekt(setting)[1:], *setting.sums()]


def _disjoint(setting: Setting) -> list[str]:
    words = ["strategy.answers=disjoint", "strategy.K=1", "strategy.refits=3"]
    return [*_privatekt(setting), "privacy.threat=local", *words]


def _averaging(setting: Setting) -> list[str]:
    """Ten rounds in which every client trains the linear model on features."""
    local = "strategy.local={epochs:1,steps:null,batch_size:16,learning_rate:3.0}"
    return [*LINEAR, "federation.num_rounds=10", local]


def _averaged(setting: Setting) -> list[str]:
    noise = ["protection=distributed", "privacy=local", "protection.clipping.norm=5.0"]
    return ["strategy=fedavg", *noise, *setting.sums(), *_averaging(setting)]


def _gradient_rounds(setting: Setting) -> list[str]:
    """Thirty rounds of clipped gradients on features that the pool gives."""
    words = ["strategy=gradient_rounds", "privacy=local", *setting.sums(), *LINEAR]
    more = ["federation.num_rounds=30", "strategy.constant=1", "strategy.average=0.5"]
    return [*words, *more, "protection.clipping.norm=0.5"]


def _without_pool(setting: Setting) -> list[str]:
    """The same on axes of the other data set; the pool's images are nobody's and unused."""
    other = {"mnist": "fashion_mnist", "fashion_mnist": "mnist"}[setting.data]
    words = ["model=centred", "model.radius=0.0001", f"features.fitted_on={other}"]
    return [*_gradient_rounds(setting), *words, "strategy.constant=0.3"]


def _dp_fedavg(setting: Setting) -> list[str]:
    # Everybody in every round: there is no cohort whose secrecy would have to be assumed.
    words = ["strategy=dp_fedavg", "federation.schedule=rotate", "protection.clipping.norm=5.0"]
    return [*words, *_averaging(setting)]


def _fedavg(setting: Setting) -> list[str]:
    return ["strategy=fedavg", *_averaging(setting)]


def _centralised(setting: Setting) -> list[str]:
    return ["strategy=centralised", *_averaging(setting), "federation.num_clients=1"]


def _dpsgd(setting: Setting) -> list[str]:
    local = "strategy.local={epochs:10,lot_size:200,clipping_norm:1.0,learning_rate:4.0}"
    return ["strategy=dpsgd_fedavg", "privacy=paper", *LINEAR, "federation.num_rounds=5", local]


@dataclass(frozen=True)
class Method:
    """``words`` of a run at a setting; the ``panel`` it belongs to; the statement's threat.

    ``pool``: whether it uses the unlabelled images. ``direct``: without messages between server and
    clients (``research.owners.rounds``). ``only``: the only setting that it is for; None: all but
    that.
    """

    words: Callable[[Setting], list[str]]
    panel: str
    threat: str
    pool: bool = True
    direct: bool = False
    only: str | None = None


SUMS, LOCAL, CENTRAL = "sums only", "local", "trusted server"
RECORDS, FREE = "records, local", "no protection"
PANELS = (SUMS, LOCAL, CENTRAL, RECORDS, FREE)
_SECURE = "secure_aggregation"
METHODS = {
    "class statistics": Method(_class_statistics, SUMS, _SECURE),
    "votes": Method(_votes, SUMS, _SECURE),
    "averaged updates": Method(_averaged, SUMS, _SECURE),
    "gradient rounds": Method(_gradient_rounds, SUMS, _SECURE, direct=True),
    "gradient rounds, no pool": Method(_without_pool, SUMS, _SECURE, pool=False, direct=True),
    "disjoint": Method(_disjoint, LOCAL, "local"),
    "DP-FedAvg": Method(_dp_fedavg, CENTRAL, "central"),
    "FedAvg": Method(_fedavg, FREE, "local"),
    "centralised": Method(_centralised, FREE, "local"),
    "DP-SGD": Method(_dpsgd, RECORDS, "local", only="pneumonia_mnist 25"),
}


@dataclass(frozen=True)
class Cell:
    """A method at a setting and ε; its candidates are compared on validation data."""

    method: str
    setting: str
    epsilon: float

    @property
    def name(self) -> str:
        """METHOD | SETTING | ε."""
        return f"{self.method} | {self.setting} | {self.epsilon:g}"

    def rows(self) -> list[Row]:
        """Each candidate on validation data, with the first seed."""
        return [Row(self, SEEDS[0], candidate, False) for candidate in self._candidates()]

    def tests(self, candidate: str) -> list[Row]:
        """``candidate`` on the test set, with each seed."""
        return [Row(self, seed, candidate, True) for seed in SEEDS]

    def _candidates(self) -> Candidates:
        return candidates(self.method, SETTINGS[self.setting].clients)


@dataclass(frozen=True)
class Row:
    """One run of a cell with a candidate's settings, scored on the test set or validation data."""

    cell: Cell
    seed: int
    candidate: str
    test: bool

    @property
    def name(self) -> str:
        """What identifies it in a file of rows."""
        data = "test" if self.test else "validation"
        return f"{self.cell.name} | {self.seed} | {self.candidate} | {data}"

    @property
    def features(self) -> tuple[str, ...]:
        """What its features depend on: rows that agree share what is kept of them on disk."""
        parts = ("dataset=", "features", "federation.public", "federation.validation", "seed=")
        return tuple(word for word in self.overrides() if word.startswith(parts))

    def overrides(self) -> list[str]:
        """The words of its run."""
        setting = SETTINGS[self.cell.setting]
        quick = ["engine=inline", "tracking=none", "keep_checkpoints=false"]
        score = [] if self.test else ["federation.score=validation"]
        words = METHODS[self.cell.method].words(setting)
        words = [words[0], *setting.overrides(), *words[1:]]  # a reference has its own clients
        words += candidates(self.cell.method, setting.clients)[self.candidate]
        return [
            *words,
            f"privacy.epsilon={self.cell.epsilon:g}",
            f"seed={self.seed}",
            *score,
            *quick,
        ]

    def run(self) -> dict[str, Any]:
        """Its figures: accuracy and seconds; of a whole run also ε of the statement, and bytes."""
        words, started = self.overrides(), time.perf_counter()
        method = METHODS[self.cell.method]
        if method.direct:
            experiment = ValidatedRun(compose(words))
            found: dict[str, Any] = dict(Direct(experiment, held=False).train(experiment))
        else:
            metrics, guarantees = run_once(words)
            proven = next(g for g in guarantees if g["threat"] == method.threat)
            clients = SETTINGS[self.cell.setting].clients
            found = {
                "accuracy": metrics["accuracy"],
                "epsilon_of_statement": proven["assumed_total"] or proven["proven_total"],
                "bytes_up_per_client": metrics["bytes_up"] // clients,
            }
        seconds = round(time.perf_counter() - started, 1)
        return {"name": self.name, **found, "seconds": seconds, "overrides": words}


def run_once(words: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Metrics of one run in this process, and the guarantees of its statement."""
    with tempfile.TemporaryDirectory() as folder:
        run = ValidatedRun.of([*words, f"run_dir={folder}/run"])
        run.run()
        metrics = run.folder.metrics()
        assert metrics is not None
        return metrics, json.loads((run.folder.path / "privacy.json").read_text())["guarantees"]


def cells() -> Iterator[Cell]:
    """All cells, ε by ε, so that what is interrupted has something of everything."""
    for epsilon in EPSILONS:
        for setting in SETTINGS.values():
            for name, method in METHODS.items():
                free = method.panel == FREE
                hospitals = setting.data == "pneumonia_mnist"
                elsewhere = (method.only or setting.name) != setting.name
                if elsewhere or (hospitals and method.only is None and not free):
                    continue
                if free and epsilon < math.inf:
                    continue
                if candidates(name, setting.clients):
                    yield Cell(name, setting.name, epsilon)
