"""Without murmur-kernels every algorithm trains, slower: nothing else imports it."""

import subprocess
import sys

import pytest

BLOCKED = """
import sys
from pathlib import Path

from murmur.learning import process

process.KERNELS = "no such group"  # as if none were installed
from fl_app.engines.inline import InlineEngine
from fl_app.run.results import RunFolder
from fl_app.run.validated import ValidatedRun
from tests.federation.killed_runs import RUNS, words_of

for name in RUNS:
    folder = RunFolder(Path(sys.argv[1]) / name)
    words = [*words_of(name, 1), "engine=inline", f"run_dir={folder.path}"]
    InlineEngine().run(ValidatedRun.of(words))
    row = folder.rows()[-1]
    print(name, row["answered"] > 0 and row["counted"], *row["failed"].values())
loaded = [name for name, module in sys.modules.items() if "murmur_kernels" in name and module]
print("loaded", loaded)
"""


@pytest.mark.long
def test_every_algorithm_trains_without_the_kernels(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *runs, loaded = [line for line in done.stdout.splitlines() if line]
    told = [line for line in runs if line.split(" ")[1:2] in (["True"], ["False"])]
    assert told and all(line.split(" ")[1] == "True" for line in told), done.stdout[-2000:]
    assert loaded == "loaded []"
