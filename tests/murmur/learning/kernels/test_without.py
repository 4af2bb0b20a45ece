"""Without ``murmur/learning/kernels`` every algorithm trains, slower: nothing else imports it."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from murmur.learning.models import InputShape
from murmur.learning.training.trainer import Trainer
from murmur.papers.dpfl_bnn.network import BinaryAutograd, bnn

BLOCKED = """
import sys
from pathlib import Path

sys.modules["murmur.learning.kernels"] = None  # as if it were not installed
from fl_app.engines.inline import InlineEngine
from fl_app.run.results import RunFolder
from tests.federation.killed_runs import RUNS, words_of

for name in RUNS:
    folder = RunFolder(Path(sys.argv[1]) / name)
    InlineEngine().run([*words_of(name, 1), "engine=inline", f"run_dir={folder.path}"], folder)
    row = folder.rows()[-1]
    print(name, row["answered"] > 0 and row["counted"], *row["failed"].values())
loaded = [name for name, module in sys.modules.items() if ".kernels" in name and module]
print("loaded", loaded)
"""
SHAPE: InputShape = (1, 8, 8)


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


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("channels", [(), (3,)])
def test_a_binary_network_trains_by_autograd_as_by_hand(monkeypatch, channels, optimizer):
    rng = np.random.default_rng(3)
    images = rng.random((40, *SHAPE), np.float32)
    labels = rng.integers(10, size=40)
    ended = []
    for kernels in (True, False):
        monkeypatch.setattr("murmur.papers.dpfl_bnn.network.has_kernels", lambda k=kernels: k)
        trainer = Trainer(partial(bnn, channels=channels, hidden=6), SHAPE, 10)
        assert isinstance(trainer._backend, BinaryAutograd) is not kernels
        trainer.load(trainer.initial(np.random.default_rng(1)))
        trainer.train(
            images,
            labels,
            rng=np.random.default_rng(2),
            steps=3,
            batch_size=20,
            lr=0.01,
            optimizer=optimizer,
        )
        ended.append((trainer.parameters(), trainer.flat.buffers()))
    for by_hand, by_autograd in zip(*ended, strict=True):
        np.testing.assert_allclose(by_autograd, by_hand, atol=1e-4)
