"""Real masks on owners' data: ``CLIENTS`` owners, one round, beside the same sum taken directly.

Noise is seeded, so that both runs add the same integers: with masks every client advertises keys,
shares its secrets, masks its answer, confirms and reveals, and the models must be the same.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_app.run.results import RunFolder

CLIENTS = 100
_WORDS = (
    *("engine=inline", "tracking=none", "privacy.noise=seeded", "seed=1"),
    *(f"federation.num_clients={CLIENTS}", "federation.num_rounds=1"),
    f"privacy.secure_sum.colluders={CLIENTS // 20}",
)


def table(names: Sequence[str]) -> None:
    """Print, for each experiment, how long both runs took and whether their models are equal."""
    print("| experiment | numbers in the model | with masks, s | without, s | the same model |")
    print("|---|---|---|---|---|")
    for name in names:
        masked, long = _run(name, "on")
        plain, short = _run(name, "simulated")
        same = "yes" if np.array_equal(masked, plain) else "no"
        print(f"| `{name}` | {len(masked)} | {long:.0f} | {short:.0f} | {same} |", flush=True)


def _run(name: str, masks: str) -> tuple[NDArray[np.float32], float]:
    """The model (p,) of one run, and the seconds that it took."""
    with tempfile.TemporaryDirectory() as folder:
        words = [f"experiment={name}", *_WORDS, f"privacy.secure_aggregation={masks}"]
        start = time.monotonic()
        command = [sys.executable, "-m", "fl_app", *words, f"run_dir={folder}/run"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - start
        checkpoint = RunFolder(Path(folder) / "run").load_checkpoint()
    assert checkpoint is not None
    return checkpoint.run.model, seconds
