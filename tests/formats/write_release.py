"""Writes the files that later versions must read: ``python -m tests.formats.write_release``.

It does a small run and puts it into ``tests/formats/VERSION/run``, and beside it what its model
predicts for a few inputs, and an owner's policy. A release writes them once, and none writes them
again.
"""

import json
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np

import fl_app
from fl_app.cli import main as murmur
from murmur.learning.data.datasets import digits
from murmur.privacy.ledger import Ledger
from tests.formats.kept import FILES, predicted

WORDS = ["engine=inline", "strategy=privatekt", "privacy=paper"]
WORDS += ["dataset=digits", "features=pca", "features.components=10", "model=linear"]
WORDS += ["federation.num_clients=4", "federation.num_rounds=2", "federation.public=300"]
WORDS += ["tracking=none", "run_name=kept"]
POLICY = Path(__file__).resolve().parents[2] / "deploy" / "policy.example.yaml"
NUM_INPUTS = 20


def write(home: Path) -> None:
    """Writes the run, its predictions and the policy into ``home``, which is not there yet."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        status = murmur([*WORDS, f"run_dir={run}"])
        if status:
            raise SystemExit(status)
        shutil.copytree(run, home / "run", ignore=shutil.ignore_patterns(".doing"))
    with Ledger(home / "run" / "ledger.sqlite", create=False) as ledger:
        ledger.verify()  # and closing makes it one file
    told = home / "run" / "provenance.json"
    text = re.sub(r'("platform": "\w+)[^"]*', r"\1", told.read_text(encoding="utf-8"))
    told.write_text(text, encoding="utf-8")
    inputs = digits().test.images[:NUM_INPUTS].astype(np.float32)
    np.save(home / "inputs.npy", inputs)
    classes = json.dumps(predicted(home / "run", inputs))
    (home / "predicted.json").write_text(f"{classes}\n", encoding="utf-8")
    shutil.copy(POLICY, home / "policy.yaml")


if __name__ == "__main__":
    write(FILES / fl_app.version())
