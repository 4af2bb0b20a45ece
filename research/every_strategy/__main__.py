"""What every strategy reaches on digits at one budget, against each of the three threats.

    python -m research.every_strategy --rows runs/every_strategy.jsonl

ε = 8 at δ = 1e-5 for the whole run and one client, 40 clients, three seeds. Each strategy runs with
its own defaults and with the words below, which were chosen once for digits, not on validation
data. Where it does not offer a threat the table says so in the strategy's own words. Sums are
simulated: the same sums and the same noise. Prints the table of docs/algorithms.md.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.runs import RunFile, print_table, run_once, spread
from fl_app.config.composition import compose
from fl_app.config.conf_files import groups
from fl_app.config.errors import ConfigError
from fl_app.run.experiment import Experiment

EPSILON = 8
THREATS = ("local", "secure_aggregation", "central")
COMMON = [
    "engine.workers=1",
    "tracking=none",
    "keep_checkpoints=false",
    f"privacy.epsilon={EPSILON}",
]
FEATURES = ["features=scattering", "model=linear"]
ROUNDS = [
    *("federation.num_rounds=10", "federation.schedule=random", "protection.clipping.norm=2"),
    *("strategy.local.epochs=1", "strategy.local.batch_size=16", "strategy.local.learning_rate=3"),
]
AVERAGING = [*FEATURES, *ROUNDS]
# One layer is shared, the other stays with each client.
SHARED_LAYERS = ["features=scattering", "model=mlp", "model.hidden=[16]", *ROUNDS]
AVERAGED = ("fedavg", "fedprox", "fedadam", "fedper", "scaffold")
PROTECTIONS = {"local": "distributed", "secure_aggregation": "distributed", "central": "central"}
SETTINGS: dict[str, list[str]] = {
    "privatekt": [
        *("strategy.answers=disjoint", "strategy.K=2", "strategy.target=posterior"),
        *("strategy.learner=ridge", "strategy.refits=3", "strategy.spreading={}"),
        *("federation.num_rounds=1", *FEATURES),
    ],
    "dp_fedavg": AVERAGING,
    "dp_ftrl": [*AVERAGING, "server_step=sgd"],
    "gradient_rounds": ["features=scattering", "federation.num_rounds=30"],
    "class_moments": ["features=scattering", "features.components=10"],
    "nbafl": ["federation.num_rounds=1", "strategy.clip=3", *FEATURES],
    "dpsgd_fedavg": ["federation.num_rounds=1", *FEATURES],
    "kd_dpfl": ["federation.num_rounds=2", *FEATURES],
    "dpfl_bnn": ["federation.num_rounds=2"],
}


def words_of(name: str, threat: str) -> list[str]:
    """The overrides of ``strategy=name`` against ``threat``, without a seed."""
    words = [f"strategy={name}", *SETTINGS.get(name, [])]
    if name in AVERAGED:
        rounds = SHARED_LAYERS if name == "fedper" else AVERAGING
        words += ["privacy=local", f"protection={PROTECTIONS[threat]}", *rounds]
    if name == "clustering":
        words += ["privacy=local", f"protection={PROTECTIONS[threat]}", "federation.num_rounds=10"]
    if name == "robust":
        rows = "rows" if threat == "central" else "distributed"
        words += ["privacy=local", f"protection={rows}", *AVERAGING]
    if name == "gradient_rounds" and threat == "central":
        words.append("protection=central")
    if name == "fedadam":
        words.append("server_step.learning_rate=0.1")
    if threat == "secure_aggregation":
        words.append("privacy.secure_aggregation=simulated")
    return [*words, f"privacy.threat={threat}", *COMMON]


def reached(words: Sequence[str]) -> dict[str, Any]:
    """Accuracy and stated ε of one run; or the reason why there is none."""
    try:
        Experiment(compose(list(words)))
    except ConfigError as error:
        return {"refused": str(error), "words": list(words)}
    done = run_once(words)
    first = done["guarantees"][0]
    return {
        "accuracy": done["metrics"]["accuracy"],
        "epsilon": first["assumed_total"] or first["proven_total"],
        "seconds": round(done["seconds"], 1),
        "words": list(words),
    }


def cell(rows: Sequence[dict[str, Any]]) -> str:
    """Mean and deviation of the accuracies of ``rows``, or why there are none."""
    refused = [row["refused"] for row in rows if "refused" in row]
    if refused:
        return f"not offered: {_reason(refused[0])}"
    assert all(row["epsilon"] <= EPSILON for row in rows)
    return spread([row["accuracy"] for row in rows], 3)


def _reason(refusal: str) -> str:
    """The part of a refusal that says what is the matter, without a class and what to type."""
    reason = refusal.partition(": ")[2].partition(";")[0]
    return re.sub(r"^\w+ supports", "it supports", reason)


def main() -> None:
    """Measure what is missing in the file, then print the table."""
    parser = argparse.ArgumentParser(description="What every strategy reaches at one budget.")
    parser.add_argument("--rows", type=Path, required=True, help="the file of the runs")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    kept = RunFile(options.rows)
    table = []
    for name in groups()["strategy"]:
        line = [f"`{name}`"]
        for threat in THREATS:
            words = words_of(name, threat)
            rows = []
            for seed in range(1, options.seeds + 1):
                key = {"strategy": name, "threat": threat, "seed": seed}
                seeded = [*words, f"seed={seed}"]
                rows.append(kept.get(key, partial(reached, seeded)))
            line.append(cell(rows))
        table.append(line)
    print(f"\n{describe_machine()}\n")
    print_table(["`strategy=`", *(f"`{threat}`" for threat in THREATS)], table)


if __name__ == "__main__":
    main()
