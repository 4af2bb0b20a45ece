"""A run killed at any instant, and resumed, ends as one that was never interrupted: bit for bit.

An instant is a number of calls of this project's functions, drawn with a fixed seed, so that a
failure can be repeated. What a kill would leave then is a copy of the folder as it is; real kills
of real processes are in ``tests/fl_app/tools/test_resume.py``.
"""

import itertools
import random
import subprocess
import sys
import threading

import pytest

from fl_app.config.composition import CONF
from fl_app.run.results import RunFolder
from tests.fl_app.running import run_inline

COMMON = [
    "engine=inline",
    "federation.num_clients=4",
    "federation.num_rounds=2",
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
    "clustering": [],
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
}
PROJECT = str(CONF.parent)
KILLS = 2  # for each


def left_behind(folder):
    """All of a run's result that does not say when it was made."""
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in folder.rows()]
    metrics = {k: v for k, v in folder.metrics().items() if k != "seconds"}
    files = [(folder.path / name).read_bytes() for name in ("model.safetensors", "privacy.json")]
    return rows, metrics, files


def run_and_copy(path, words, instants=(), copies=None):
    """Run, and copy the folder before function call number i for each i in ``instants``.

    How many calls there were.
    """
    counter, wanted = itertools.count(), dict(zip(instants, copies or (), strict=True))

    def look(frame, event, argument):
        if not frame.f_code.co_filename.startswith(PROJECT):
            return
        if (copy := wanted.get(next(counter))) is not None:
            copy.parent.mkdir()
            # In a process of its own: closing a file here would let go of the ledger's locks.
            subprocess.run(["cp", "-a", str(path), str(copy)], check=True)

    threading.settrace(look)
    sys.settrace(look)
    try:
        run_inline(path, *words, small=COMMON)
    finally:
        sys.settrace(None)
        threading.settrace(None)
    return next(counter)


@pytest.mark.parametrize("strategy", RUNS)
def test_killed_and_resumed_equals_uninterrupted(tmp_path, strategy):
    words = [f"strategy={strategy}", *RUNS[strategy]]
    calls = run_and_copy(tmp_path / "counted" / "run", words)
    draw = random.Random(strategy)
    # Not the very first calls, where there is no folder yet.
    instants = [draw.randrange(calls // 5, calls * 9 // 10) for _ in range(KILLS)]
    copies = [tmp_path / str(kill) / "run" for kill in range(KILLS)]
    run_and_copy(tmp_path / "whole" / "run", words, instants, copies)
    expected = left_behind(RunFolder(tmp_path / "whole" / "run"))
    for instant, copy in zip(instants, copies, strict=True):
        run_inline(copy, *words, small=COMMON)
        assert left_behind(RunFolder(copy)) == expected, f"killed at call {instant} of {calls}"
