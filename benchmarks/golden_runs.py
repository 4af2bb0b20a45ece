"""Small runs of every algorithm, way and protection, as digests: for changes that keep the bits.

    python -m benchmarks.golden_runs write FILE     before the change
    python -m benchmarks.golden_runs compare FILE   after it: what differs, and status 1

A digest is of the model's bytes, of every charge in the clients' ledger, and of the statement. The
models depend on the processor and on PyTorch's version, so FILE is of one machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sqlite3
import sys
import tempfile
from pathlib import Path

from safetensors.numpy import load_file

from fl_app.engines.inline import InlineEngine
from fl_app.run.results import RunFolder
from murmur.privacy.ledger.blocks import names_in

COMMON = [
    *("engine=inline", "dataset=digits", "privacy.noise=seeded", "tracking=none"),
    *("federation.num_clients=6", "federation.num_rounds=2"),
]
SUMS = ["privacy.threat=secure_aggregation", "privacy.secure_aggregation=on"]
LINEAR = ["features=scattering", "features.components=400", "model=linear"]
RUNS = {
    "privatekt paper": ["strategy=privatekt", "privacy=paper"],
    "privatekt disjoint": [
        *("strategy=privatekt", "privacy=paper", "strategy.answers=disjoint"),
        "strategy.target=posterior",
        *("strategy.learner=ridge", *LINEAR, "federation.public=100"),
    ],
    "privatekt votes": ["experiment=digits_votes", "federation.num_clients=12"],
    "nbafl paper": ["strategy=nbafl", "privacy=paper"],
    "nbafl worst": ["strategy=nbafl", "privacy.epsilon=8"],
    "nbafl dpsgd": ["strategy=nbafl", "privacy.unit=record", "privacy.epsilon=8"],
    "kd_dpfl": ["experiment=digits_kd_dpfl", "federation.num_clients=23"],
    "kd_dpfl randomised response": [
        *("experiment=digits_kd_dpfl", "federation.num_clients=23"),
        *("strategy.labelling.mechanism=rr", "strategy.soft=true"),
    ],
    "dpfl_bnn": ["experiment=digits_dpfl_bnn"],
    "dpfl_bnn messages": [
        *("experiment=digits_dpfl_bnn", "privacy.secure_aggregation=off", "privacy.threat=local"),
    ],
    "fedavg": ["strategy=fedavg"],
    "fedprox": ["strategy=fedprox"],
    "fedadam": ["strategy=fedadam"],
    "scaffold": ["strategy=scaffold", "privacy.epsilon=inf"],
    "centralised": ["strategy=centralised"],
    "local_only": ["strategy=local_only"],
    "fedper": ["strategy=fedper"],
    "robust median": ["strategy=robust"],
    "robust krum, noised rows": [
        *("strategy=robust", "strategy.aggregation=krum", "protection=rows", "privacy=local"),
        *("privacy.threat=central", "privacy.epsilon=50"),
    ],
    "dp_fedavg": ["strategy=dp_fedavg", "privacy.epsilon=8"],
    "dp_fedavg poisson": ["experiment=digits_dp_fedavg", "federation.num_rounds=2"],
    "dp_ftrl": ["strategy=dp_ftrl", "privacy.epsilon=8"],
    "distributed local": [
        "strategy=fedavg",
        "protection=distributed",
        "privacy=local",
        "privacy.epsilon=8",
        "privacy.threat=local",
    ],
    "distributed sums": [
        *("strategy=fedavg", "protection=distributed", "privacy=local", "privacy.epsilon=8", *SUMS),
    ],
    "dpsgd_fedavg": [
        *("strategy=dpsgd_fedavg", "privacy.unit=record", "model=mlp", "privacy.epsilon=8"),
    ],
    "class_statistics": [
        *("strategy=class_statistics", *LINEAR, *SUMS, "federation.num_rounds=1"),
        "privacy.epsilon=8",
    ],
    "gradient_rounds": ["strategy=gradient_rounds", "privacy.epsilon=8", *SUMS],
    "gradient_rounds centred": [
        *("strategy=gradient_rounds", "model=centred", "strategy.average=0.5"),
        *("server_step=momentum", "privacy.epsilon=8", *SUMS),
    ],
    "class_moments": [
        *("strategy=class_moments", "privacy.unit=record", "privacy.epsilon=8", *SUMS),
    ],
    "clustering": ["strategy=clustering", "model=clustering", "privacy.epsilon=inf"],
    "rows of clients": [
        "strategy=clustering",
        "model=clustering",
        "evaluation=protected_clustering",
    ],
    "mindspore": ["strategy=fedavg", "model=mlp", "evaluation=mindspore"],
    "counts": ["strategy=fedavg", "evaluation=protected_counts"],
    "counts in sums": [
        *(
            "strategy=fedavg",
            "protection=distributed",
            "privacy=local",
            "privacy.epsilon=8",
            *SUMS,
            "evaluation=protected_counts",
        ),
        "evaluation.counts.noise=gaussian",
    ],
    "canaries": [
        "strategy=fedavg",
        "protection=distributed",
        "privacy=local",
        "privacy.epsilon=8",
        "privacy.threat=local",
        "audit=canaries",
    ],
}


def _timeless(body: str) -> str:
    """An entry without the digest of its sum's terms, which hold fresh keys."""
    return re.sub('"terms":"[0-9a-f]+"', "", body)


def digests(words: list[str]) -> dict[str, str]:
    """What a run leaves, each as a digest; or the reason why it does not start."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        try:
            InlineEngine().run([*COMMON, *words, f"run_dir={folder.path}"], folder)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        charges: list[str] = []
        for file in sorted(folder.path.rglob("ledger.sqlite")):
            with sqlite3.connect(file) as ledger:
                query = "SELECT client, round, purpose, body FROM entries WHERE kind = 'charge'"
                found = [
                    (name, number, purpose, _timeless(body))
                    for client, number, purpose, body in ledger.execute(query)
                    for name in names_in(client)
                ]
            charges += map(repr, sorted(found))
        statement = (folder.path / "privacy.json").read_bytes()
        model = load_file(folder.path / "model/model.safetensors")
        rows = [json.loads(line) for line in (folder.path / "rounds.jsonl").open()]
        scores = [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
        parts = {
            "model": b"".join(values.tobytes() for _, values in sorted(model.items())),
            "charges": "\n".join(charges).encode(),
            "statement": statement,
            "rows": json.dumps(scores, sort_keys=True).encode(),
        }
        return {name: hashlib.sha256(content).hexdigest()[:16] for name, content in parts.items()}


def main() -> int:
    """Write the digests of all runs, or say which differ from those in a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="runs whose name holds these letters")
    options = parser.parse_args()
    found = {name: digests(words) for name, words in RUNS.items() if options.only in name}
    if options.what == "write":
        options.file.write_text(json.dumps(found, indent=1))
        return 0
    before = json.loads(options.file.read_text())
    differ = {name for name in found if found[name] != before.get(name)}
    for name in sorted(differ):
        print(f"{name}: was {before.get(name)}, is {found[name]}")
    print(f"{len(found) - len(differ)} of {len(found)} runs are as before")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
