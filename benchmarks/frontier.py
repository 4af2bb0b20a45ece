"""Accuracy against a proven total ε: ``python -m benchmarks.frontier --rows FILE``.

Every row is a run of Murmur itself in this process, appended to FILE as a line of JSON; a row that
is there already is not run again. ``--only REGEX`` runs the rows whose name (METHOD | SETTING | ε |
SEED) it finds, ``--show`` prints the tables (Markdown) and ``--picture FILE`` draws them. Needs
``MURMUR_DATA`` for MNIST and Fashion-MNIST. docs/frontier.md says how settings were chosen.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import pictures
from fl_app.config.building import build
from fl_app.config.composition import compose
from fl_app.run.results import RunFolder

EPSILONS = (0.5, 1, 2, 4, 8, math.inf)
SEEDS = (1, 2, 3)
# The sum holds the noise of 90% of the cohort less colluders: dropouts and colluders are paid for.
SUMS = ["privacy.threat=secure_aggregation", "privacy.secure_aggregation=simulated"]
LINEAR = ["features=scattering", "model=linear"]


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
        return [*words, f"features.components={self.features}", "federation.num_rounds=1"]

    def sums(self) -> list[str]:
        """A budget against a server that sees sums: 10% drop out, 5% collude."""
        colluders = round(self.clients * 0.05)
        return [
            *SUMS,
            "privacy.secure_sum.minimum=0.9",
            f"privacy.secure_sum.colluders={colluders}",
        ]


def _settings() -> list[Setting]:
    split = {"iid": ["partition=iid"]} | {
        f"dirichlet {a}": ["partition=dirichlet", f"partition.alpha={a}"] for a in (0.5, 0.1)
    }
    pool = "federation.public=10000"
    made = [
        Setting(
            f"digits 60, {name}",
            "digits",
            60,
            ("federation.public=360", *split[name]),
            30,
            30,
            "null",
        )
        for name in ("iid", "dirichlet 0.5")
    ]
    for data in ("mnist", "fashion_mnist"):
        made += [
            Setting(f"{data} {clients}, {name}", data, clients, (pool, *words))
            for clients in (1000, 100)
            for name, words in split.items()
        ]
    small = ("federation.public=1000", *split["dirichlet 0.5"])
    made.append(Setting("mnist 1000, dirichlet 0.5, pool of 1000", "mnist", 1000, small))
    return made


SETTINGS = {setting.name: setting for setting in _settings()}


def _class_statistics(setting: Setting) -> list[str]:
    graph = f"strategy.spreading.components={setting.graph}"
    return ["strategy=class_statistics", *setting.sums(), graph]


def _privatekt(setting: Setting) -> list[str]:
    return [
        "strategy=privatekt",
        *LINEAR,
        "strategy.learner=ridge",
        "strategy.target=posterior",
        f"strategy.components={setting.local}",
        f"strategy.spreading={{components:{setting.graph}}}",
    ]


def _votes(setting: Setting) -> list[str]:
    images = 80 if setting.data == "digits" else 500
    words = ["strategy.answers=votes", f"strategy.K={images}"]
    return [*_privatekt(setting), *setting.sums(), *words]


def _disjoint(setting: Setting) -> list[str]:
    words = ["strategy.answers=disjoint", "strategy.K=1", "strategy.refits=3"]
    return [*_privatekt(setting), "privacy.threat=local", *words]


METHODS = {"class statistics": _class_statistics, "votes": _votes, "disjoint": _disjoint}
THREATS = {"class statistics": "sums only", "votes": "sums only", "disjoint": "local"}


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

    def overrides(self) -> list[str]:
        """The words of its run."""
        setting = SETTINGS[self.setting]
        budget = ["privacy.per=run", f"privacy.epsilon={self.epsilon:g}", f"seed={self.seed}"]
        quick = ["engine=inline", "tracking=none", "keep_checkpoints=false"]
        return [*METHODS[self.method](setting), *setting.overrides(), *budget, *quick]

    def run(self) -> dict[str, Any]:
        """Its figures: accuracy on the test set, ε of the statement, bytes and seconds."""
        words, started = self.overrides(), time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            run = RunFolder(Path(folder) / "run")
            words = [*words, f"run_dir={run.path}"]
            build(compose(words).engine, "engine").run(words, run)
            metrics = run.metrics()
            guarantees = json.loads((run.path / "privacy.json").read_text())["guarantees"]
        assert metrics is not None
        threat = "local" if THREATS[self.method] == "local" else "secure_aggregation"
        proven = next(g for g in guarantees if g["threat"] == threat)
        return {
            "name": self.name,
            "accuracy": metrics["accuracy"],
            "epsilon_of_statement": proven["assumed_total"] or proven["proven_total"],
            "seconds": round(time.perf_counter() - started, 1),
            "overrides": self.overrides(),
        }


def rows(only: str = "") -> Iterator[Row]:
    """All rows, seed by seed, so that what is interrupted has something of everything."""
    for seed in SEEDS:
        for setting in SETTINGS:
            for method in METHODS:
                for epsilon in EPSILONS:
                    row = Row(method, setting, epsilon, seed)
                    if re.search(only, row.name):
                        yield row


def load(path: Path) -> dict[str, dict[str, Any]]:
    """Rows that were measured, by name."""
    if not path.exists():
        return {}
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["name"]: row for row in found}


def measure(path: Path, only: str, minutes: float) -> None:
    """Run what is missing, for so many minutes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done, end = load(path), time.monotonic() + 60 * minutes
    for row in rows(only):
        if row.name in done:
            continue
        if time.monotonic() > end:
            break
        found = row.run()
        print(f"{row.name}: {found['accuracy']:.4f} in {found['seconds']:.0f} s", flush=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")


def cells(path: Path) -> dict[tuple[str, str], dict[float, list[float]]]:
    """Accuracies by (setting, method) and ε."""
    done = load(path)
    found: dict[tuple[str, str], dict[float, list[float]]] = {}
    for row in rows():
        if row.name in done:
            by_epsilon = found.setdefault((row.setting, row.method), {})
            by_epsilon.setdefault(row.epsilon, []).append(done[row.name]["accuracy"])
    return found


def show(path: Path) -> None:
    """The tables, one for each threat."""
    found = cells(path)
    for threat in ("sums only", "local"):
        titles = [f"ε = {e:g}" if e < math.inf else "no noise" for e in EPSILONS]
        print(f"\n| {threat} | " + " | ".join(titles) + " |")
        print("|---|---|" + "---|" * (len(EPSILONS) - 1))
        for (setting, method), values in found.items():
            if THREATS[method] == threat:
                shown = [_cell(values.get(e, [])) for e in EPSILONS]
                print(f"| {method}: {setting} | " + " | ".join(shown) + " |")


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread} ({len(values)})"


def draw(path: Path, picture: Path) -> None:
    """Accuracy against ε, a panel for each threat."""
    found = cells(path)
    figure, axes = pictures.canvas(2)
    for axis, threat in zip(axes, ("sums only", "local"), strict=True):
        for number, (key, values) in enumerate(
            item for item in found.items() if THREATS[item[0][1]] == threat
        ):
            points = [e for e in EPSILONS if e < math.inf and e in values]
            means = [statistics.mean(values[e]) for e in points]
            axis.plot(points, means, marker="o", label=f"{key[1]}: {key[0]}", color=f"C{number}")
        axis.set(xscale="log", xlabel="total ε", ylabel="test accuracy", title=threat)
        finite = [e for e in EPSILONS if e < math.inf]
        axis.set_xticks(finite, [f"{e:g}" for e in finite])
        axis.set_xticks([], minor=True)
        axis.set_ylim(0, 1)
        axis.legend(fontsize=6)
    pictures.save(figure, picture)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=Path, required=True, metavar="FILE")
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose name it finds")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no row after these")
    parser.add_argument("--show", action="store_true", help="print the tables, run nothing")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw what was measured")
    arguments = parser.parse_args()
    if not arguments.show:
        measure(arguments.rows, arguments.only, arguments.minutes)
    show(arguments.rows)
    if arguments.picture is not None:
        draw(arguments.rows, arguments.picture)


if __name__ == "__main__":
    main()
