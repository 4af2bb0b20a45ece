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

from benchmarks.kills import RUNS, left_behind, words_of
from fl_app.config.composition import CONF
from fl_app.run.results import RunFolder
from tests.fl_app.running import run_inline

PROJECT = str(CONF.parent)
KILLS = 2  # for each; `make test-long` kills each 20 times


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
        run_inline(path, *words, small=["engine=inline"])
    finally:
        sys.settrace(None)
        threading.settrace(None)
    return next(counter)


@pytest.mark.parametrize("strategy", RUNS)
@pytest.mark.parametrize("kills", [KILLS, pytest.param(20, marks=pytest.mark.long)])
def test_killed_and_resumed_equals_uninterrupted(tmp_path, strategy, kills):
    words = words_of(strategy, 2)
    calls = run_and_copy(tmp_path / "counted" / "run", words)
    draw = random.Random(strategy)
    # Not the very first calls, where there is no folder yet.
    instants = [draw.randrange(calls // 5, calls * 9 // 10) for _ in range(kills)]
    copies = [tmp_path / str(kill) / "run" for kill in range(kills)]
    run_and_copy(tmp_path / "whole" / "run", words, instants, copies)
    expected = left_behind(RunFolder(tmp_path / "whole" / "run"))
    for instant, copy in zip(instants, copies, strict=True):
        run_inline(copy, *words, small=["engine=inline"])
        assert left_behind(RunFolder(copy)) == expected, f"killed at call {instant} of {calls}"
