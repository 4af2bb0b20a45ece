"""Small runs of every algorithm that are killed, and what killing must not change of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from fl_app.run.results import RunFolder

COMMON = [
    "federation.num_clients=4",
    "privacy.noise=seeded",
    "tracking=none",
]
RUNS = {
    "privatekt": ["strategy.local.epochs=1"],
    "nbafl": ["strategy.local.epochs=1", "federation.public=0"],
    "dpfl_bnn": ["model.channels=[]", "model.hidden=8"],
    "kd_dpfl": [
        "model=mlp",
        "model.hidden=[]",
        "strategy.grouping.top_k=1",
        "strategy.labelling.epochs=1",
    ],
    "class_statistics": [
        "federation.num_rounds=1",  # its clients answer once
        "features.components=9",
        "strategy.spreading=null",
        "privacy.secure_aggregation=simulated",
    ],
    "class_moments": [
        "federation.num_rounds=1",  # its clients answer twice, once before the round
        "federation.public=0",
        "privacy.secure_aggregation=simulated",
    ],
    "gradient_rounds": [
        "model=centred",
        "strategy.average=0.5",
        "federation.public=0",
        "privacy.secure_aggregation=simulated",
    ],
    "clustering": ["model.hidden=[]", "strategy.local.epochs=1"],
    "dp_fedavg": [],
    "dp_ftrl": [],
    "fedadam": [
        "protection=distributed",
        "protection.clipping.adaptive=true",
        "protection.clipping.bit_noise=20",
        "privacy.epsilon=100",
    ],
    "scaffold": [],
    "dpsgd_fedavg": ["model=mlp", "model.hidden=[]"],
    "fedavg": [],
    "fedprox": [],
    "centralised": ["federation.num_clients=1"],
    "local_only": [],
    "fedper": [],
    "robust": ["aggregation=trimmed_mean"],
    "votes": ["privacy.secure_aggregation=simulated"],
}


@dataclass(frozen=True)
class Kill:
    """``seconds``: until all had ended; ``left``: processes after 10 s. The run went on: None."""

    strategy: str
    victim: str
    status: int | None
    seconds: float | None
    left: int
    same: bool


def words_of(strategy: str, rounds: int) -> list[str]:
    """The overrides of one small run."""
    chosen = [f"strategy={strategy}", f"federation.num_rounds={rounds}"]
    return [*COMMON, *chosen, *RUNS[strategy]]


def same_result(path: Path, whole: Path) -> bool:
    """Whether two runs' results are equal bit for bit; says on stderr where they differ."""
    found, wanted = _left_behind(RunFolder(path)), _left_behind(RunFolder(whole))
    for name in wanted:
        if found[name] != wanted[name]:
            print(f"{name}:\n{found[name]!r:.3000}\n{wanted[name]!r:.3000}", file=sys.stderr)
    return found == wanted


def _left_behind(run: RunFolder) -> dict[str, object]:
    """All of a run's result that does not say when it was made."""
    timeless = [{k: v for k, v in row.items() if k != "seconds"} for row in run.rows()]
    metrics = {k: v for k, v in (run.metrics() or {}).items() if k != "seconds"}
    files = ("model/model.safetensors", "privacy.json")
    held = {name: (run.path / name).read_bytes() for name in files if (run.path / name).exists()}
    return {"rounds.jsonl": timeless, "metrics.json": metrics, **dict.fromkeys(files), **held}
