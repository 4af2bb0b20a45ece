"""Small runs of every algorithm, way and protection: what clients paid, what is stated, the model.

    python -m benchmarks.golden_runs write FILE     before a change that keeps the bits
    python -m benchmarks.golden_runs compare FILE   after it: what differs, and status 1

FILE holds, of each run, its charges and its statement as they are, and digests of what depends on
the processor and on PyTorch's version: the model's bytes, the rows, and what canaries and
evaluations measured. `tests/formats/golden_runs.json` is such a file; charges and statements in it
hold everywhere (`tests/formats/test_golden_runs.py`), its digests on the machine that wrote it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import re
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from fl_app.run.prepare import prepare
from fl_app.run.results import RunFolder
from murmur.privacy.ledger.blocks import decode_ids

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
        *("strategy=robust", "aggregation=krum", "protection=rows", "privacy=local"),
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
        "federation.num_rounds=1",
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

_LINE = 240  # characters of a difference that are printed
_SCORED = re.compile(r"in \d+ of \d+ evaluations")  # begins a warning that follows from scores


def record(words: list[str]) -> dict[str, Any]:
    """Runs ``words`` in a temporary folder and returns what the run has left.

    Returns:
        ``charges``, ``statement`` and ``digests``; ``error`` alone where the run does not start.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        try:
            prepare([*COMMON, *words, f"run_dir={folder.path}"]).run()
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        statement = json.loads((folder.path / "privacy.json").read_bytes())
        model = load_file(folder.path / "model/model.safetensors")
        rows = [json.loads(line) for line in (folder.path / "rounds.jsonl").open()]
        scores = [{k: v for k, v in row.items() if k != "seconds"} for row in rows]
        parts = {
            "model": b"".join(values.tobytes() for _, values in sorted(model.items())),
            "rows": json.dumps(scores, sort_keys=True).encode(),
            "measured": json.dumps(take_measured(statement)).encode(),
        }
        return {
            "charges": _charges(folder.path),
            "statement": statement,
            "digests": {
                name: hashlib.sha256(part).hexdigest()[:16] for name, part in parts.items()
            },
        }


def _charges(folder: Path) -> list[dict[str, Any]]:
    """Charges of all ledgers below ``folder``, sorted, with the clients that share each."""
    clients: dict[tuple[str, int, str, str], set[str]] = {}
    query = "SELECT client, round, purpose, body FROM entries WHERE kind = 'charge'"
    for file in sorted(folder.rglob("ledger.sqlite")):
        with contextlib.closing(sqlite3.connect(file)) as ledger:
            for names, number, purpose, body in ledger.execute(query):
                key = (str(file.relative_to(folder)), number, purpose, _without_terms(body))
                clients.setdefault(key, set()).update(decode_ids(names))
    return [
        {
            "ledger": ledger,
            "round": number,
            "purpose": purpose,
            "clients": sorted(clients[ledger, number, purpose, body]),
            "event": json.loads(body),
        }
        for ledger, number, purpose, body in sorted(clients)
    ]


def _without_terms(body: str) -> str:
    """Returns an entry without the digest of its sum's terms, which hold fresh keys."""
    return re.sub('"terms":"[0-9a-f]+",', "", body)


def take_measured(statement: dict[str, Any]) -> list[Any]:
    """Removes what was measured of the model, by canaries or an evaluation, and returns it."""
    scored = [text for text in statement["warnings"] if _SCORED.match(text)]
    statement["warnings"] = [text for text in statement["warnings"] if text not in scored]
    measured: list[Any] = [scored] if scored else []
    for guarantee in statement["guarantees"]:
        canaries = guarantee["canaries"] or {}
        found = {name: canaries.pop(name) for name in list(canaries) if name != "count"}
        measured.append([found, guarantee.pop("measured")])
    return measured


def differences(before: Any, now: Any, tolerance: float = 0.0, place: str = "") -> list[str]:
    """Compares two values of JSON and returns a line for each place where they differ.

    Args:
        before: as it was.
        now: as it is.
        tolerance: relative, of floats.
        place: of both, for the lines.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        places = sorted(before.keys() | now.keys())
        pairs = [(key, before.get(key, "nothing"), now.get(key, "nothing")) for key in places]
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = [(str(i), *values) for i, values in enumerate(zip(before, now, strict=True))]
    elif _is_close(before, now, tolerance):
        return []
    else:
        return [f"{place}: was {before}, is {now}"]
    return [
        line
        for key, old, new in pairs
        for line in differences(old, new, tolerance, f"{place}.{key}".lstrip("."))
    ]


def _is_close(before: Any, now: Any, tolerance: float) -> bool:
    """Compares two values of one type: floats with a relative tolerance, all others exactly."""
    if type(before) is not type(now):
        return False
    if isinstance(before, float):
        return math.isclose(before, now, rel_tol=tolerance)
    return bool(before == now)


def main() -> int:
    """Write what all runs leave, or say what differs from a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="runs whose name holds these letters")
    options = parser.parse_args()
    found = {name: record(words) for name, words in RUNS.items() if options.only in name}
    if options.what == "write":
        options.file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return 0
    before = json.loads(options.file.read_text(encoding="utf-8"))
    failed = 0
    for name, run in found.items():
        lines = differences(before.get(name), run)
        failed += bool(lines)
        for line in lines:
            print(f"{name}: {line[:_LINE]}")
    print(f"{len(found) - failed} of {len(found)} runs are as before")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
