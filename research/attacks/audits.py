"""Every algorithm at equal proven ε: what it learns, and how much of ε an attack shows.

    python -m research.attacks.audits [--epsilon 2 8] [--only NAME ...] [--rows runs/audits.jsonl]

Digits, seed 1, the budget for the whole run: against a server that reads every message, or, where
a trusted server adds the noise, against those who see models. For each algorithm one run gives
accuracy and bytes, then ``murmur audit`` attacks one release, and all of a client's (of models: the
last). Rows are kept as they are made, so an interrupted command goes on where it was.

Measured ε is at least what stands there with 99.9% confidence: counted; or, where noise is
Gaussian, the lower end of an estimate, if what is seen is normal, or if the trade-off is Gaussian
(marked *).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.pictures import save
from benchmarks.runs import RunFile, print_table, run_once
from fl_app.config.compose import compose
from fl_app.run.hosts import SimulatedHost
from fl_app.run.validated import ValidatedRun
from murmur.privacy.accounting import Threat
from murmur.round.site import SimulatedSite
from murmur_report.attack import AttackResult
from murmur_report.audit import Effort, findings

COMMON = [
    "engine=inline",
    "dataset=digits",
    "federation.num_clients=60",
    "federation.num_rounds=2",
    "keep_checkpoints=false",
]
LOCAL = ["privacy.threat=local", "privacy.secure_aggregation=off"]
LINEAR = ["model=linear", "privacy=local"]
FOUR = "features.components=4"
CLIPPED = [*LINEAR, *LOCAL, "protection=distributed"]
# Releases of each neighbour: labels and bits; what Gaussian noise is added to; what is trained.
MANY, FEW, TRAINED = 40_000, 2_000, 1_000
WORDS = {"release": "one release", "run": "a client's run", "model": "the last model"}
ONE_STEP = [
    "strategy.local.epochs=1",
    "strategy.local.lot_size=100",
]  # on all of a client's records
# By name: settings, and how often each neighbour is seen.
ALGORITHMS: dict[str, tuple[list[str], int]] = {
    "PrivateKT, labels": (["strategy=privatekt", "model=linear", "strategy.K=1"], MANY),
    "PrivateKT, votes": (
        [
            *("strategy=votes", "model=linear", "strategy.K=10"),
            *("strategy.target=posterior", *LOCAL),
        ],
        FEW,
    ),
    "DPFL-BNN": (["experiment=digits_dpfl_bnn", "federation.num_rounds=1", *LOCAL], MANY),
    "NbAFL, a client": (
        ["experiment=digits_nbafl", "privacy.sensitivity=worst", "privacy.calibration=proven"],
        FEW,
    ),
    "FedAvg, noise of clients": (["strategy=fedavg", *CLIPPED], FEW),
    "SCAFFOLD, noise of clients": (["strategy=scaffold", *CLIPPED], FEW),
    "class statistics": (
        ["strategy=class_statistics", *LINEAR, *LOCAL, "federation.num_rounds=1"],
        FEW,
    ),
    "gradient rounds": (["strategy=gradient_rounds", *LOCAL, "federation.num_rounds=2"], FEW),
    "class moments, a client": (
        ["strategy=class_moments", "privacy.unit=client", *LOCAL, "features=pca", FOUR],
        FEW,
    ),
    "class moments, a record": (
        ["strategy=class_moments", "privacy.unit=record", *LOCAL, "features=pca", FOUR],
        FEW,
    ),
    "DP-FedAvg": (["experiment=digits_dp_fedavg", "federation.num_rounds=2"], FEW),
    "DP-FTRL": (["strategy=dp_ftrl", "model=linear", "federation.num_rounds=2"], FEW),
    "NbAFL, a record": (
        [
            *("experiment=digits_nbafl", "privacy.sensitivity=dpsgd", "strategy.local.epochs=1"),
            *("strategy.local.batch_size=100", "strategy.local.learning_rate=0.05"),
        ],
        TRAINED,
    ),
    "DP-SGD FedAvg, a record": (
        ["strategy=dpsgd_fedavg", "privacy.unit=record", *ONE_STEP],
        TRAINED,
    ),
    "KD-DPFL, a record": (
        [
            *("experiment=digits_kd_dpfl", "federation.num_clients=23", "federation.num_rounds=2"),
            *("strategy.labelling.mechanism=pate", "strategy.labelling.teachers=2"),
            *("strategy.labelling.allow_few=true", "strategy.labelling.queries=20"),
            *("strategy.labelling.epochs=2", "strategy.teacher.learning_rate=5.0"),
        ],
        TRAINED,
    ),
}
BEFORE = "labels"  # what is asked before the rounds, which has a row of its own


def measure(words: Sequence[str], runs: int) -> dict[str, Any]:
    """Accuracy, bytes and attacks of the configuration ``words``."""
    started = time.perf_counter()
    done = run_once(words)
    config, found = compose(list(words)), {}
    with tempfile.TemporaryDirectory() as scratch:
        strategy = ValidatedRun(config).strategy
        node = SimulatedHost(config, SimulatedSite.of(Path(scratch)))
        threat = Threat(config.privacy.threat)
        for exposure, bound, finding in findings(strategy, node, Effort(runs), threat):
            if finding is not None:
                which = "release" if bound.releases == 1 else "run"
                if exposure.threat is Threat.CENTRAL and which == "run":
                    which = "model"
                if which in found:
                    which = BEFORE
                found[which] = _figures(finding, bound.epsilon)
    return {
        "accuracy": done["metrics"]["accuracy"],
        "bytes": done["metrics"]["bytes_up"],
        "found": found,
        "seconds": round(time.perf_counter() - started, 1),
    }


def lines(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """``rows``, and one more for what an algorithm's clients are asked before its rounds."""
    found = []
    for row in rows:
        found.append(row)
        if BEFORE in row["found"]:
            own = {"release": row["found"][BEFORE]}
            found.append(row | {"algorithm": f"{row['algorithm']}'s {BEFORE}", "found": own})
    return found


def _figures(finding: AttackResult, epsilon: float) -> dict[str, Any]:
    """What an attack showed of ``epsilon``; ``assumed``: if the trade-off is Gaussian."""
    fitted = 0.0
    if finding.estimate is not None:
        fitted = finding.estimate.low
    assumed = fitted > finding.likely
    return {
        "proven": epsilon,
        "measured": max(fitted, finding.likely),
        "assumed": assumed,
        "auc": finding.success.auc,
        "hits": finding.success.hits,
    }


def table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A line for each algorithm and ε."""
    return [
        [
            row["algorithm"],
            f"{row['epsilon']:g}",
            f"{row['accuracy']:.3f}",
            *(_ratio(row["found"].get(which)) for which in ("release", "run", "model")),
            *_success(row["found"]),
            f"{row['bytes']:,}",
            f"{row['seconds']:.0f}",
        ]
        for row in rows
    ]


def _ratio(found: dict[str, Any] | None) -> str:
    if found is None:
        return "–"
    star = "*" if found["assumed"] else ""
    share = found["measured"] / found["proven"]
    return f"{found['measured']:.3g} of {found['proven']:.3g}: {share:.2f}{star}"


def _success(found: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """Of the attack on all that was seen over the run, else on one release."""
    last = found.get("model") or found.get("run") or found.get("release")
    return ("–", "–") if last is None else (f"{last['auc']:.3f}", f"{last['hits']:.3f}")


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Measured against proven ε, each attack a mark; on the diagonal all of it is shown."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4.5))
    for which, mark in (("release", "o"), ("run", "s"), ("model", "^")):
        found = [row["found"][which] for row in rows if which in row["found"]]
        x, y = [each["proven"] for each in found], [each["measured"] for each in found]
        axes.plot(x, y, mark, label=WORDS[which], alpha=0.7)
    for share in (1.0, 0.8, 0.6):
        axes.plot([0, 8.5], [0, 8.5 * share], color="grey", linewidth=0.8)
        axes.annotate(f"{share:g}", (8.5, 8.5 * share), color="grey", va="center")
    axes.set(xlabel="proven ε", ylabel="measured ε, at least (99.9% confidence)")
    axes.legend(frameon=False)
    save(figure, path)


def main() -> None:
    """Measure what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[2.0, 8.0])
    parser.add_argument("--only", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument("--rows", type=Path, default=Path("runs/audits.jsonl"))
    parser.add_argument("--picture", type=Path, help="where to draw measured against proven ε")
    given = parser.parse_args()
    kept, rows = RunFile(given.rows), []
    for name in given.only:
        own, runs = ALGORITHMS[name]
        for epsilon in given.epsilon:
            words = [*COMMON, *own, f"privacy.epsilon={epsilon:g}"]
            key = {"algorithm": name, "epsilon": epsilon, "runs": runs, "words": words}
            rows.append(kept.get(key, partial(measure, words, runs)))
    rows = lines(rows)
    print(describe_machine())
    if given.picture is not None:
        draw(rows, given.picture)
    head = ["algorithm", "ε", "accuracy", *WORDS.values()]
    print_table([*head, "AUC", "TPR at FPR 0.001", "bytes", "seconds"], table(rows))


if __name__ == "__main__":
    main()
