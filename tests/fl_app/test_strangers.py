"""What a stranger adds from outside the tree, and runs to the end with the command.

An algorithm with a protection of its own, in one Python file that is tested with ``fl_app.testing``
alone, and a geometric median in ``conf/aggregation`` of a folder of one's own.
"""

import json
import subprocess
import sys

import numpy as np
import pytest

from fl_app.config.plugins import VARIABLE, own_part

SMALL = [
    *("engine=inline", "dataset=digits", "features=none", "model=linear", "tracking=none"),
    *("federation.num_clients=8", "federation.num_rounds=2", "federation.public=20"),
]

# Clients send the signs of their update, each flipped by a mechanism of the file's own.
ALGORITHM = '''
"""Signs of the update, each kept with probability 1/(1 + exp(-epsilon of one bit))."""

import math

import numpy as np

from clients.base import Client
from murmur.learning.codec import BitCodec
from murmur.privacy.events import RandomizedBitsEvent
from strategies.base import CohortStrategy


class KeptSigns:
    """A protection of one's own: flips bits, and says what that costs."""

    def __init__(self, budget, bits):
        share = 0.99 * budget.epsilon / budget.releases / bits
        self.gamma = 1 / (1 + math.exp(-share)) - 0.5
        self.bits = bits

    def event(self):
        return RandomizedBitsEvent(self.gamma, self.bits, self.bits)

    def flip(self, signs, noise):
        flipped = noise.uint32(len(signs)) < math.ceil((0.5 - self.gamma) * 2**32)
        return signs ^ flipped


class Signs(CohortStrategy):
    algorithm = "kept signs"

    def __init__(self, setup, *, step):
        super().__init__(setup)
        self.protection = KeptSigns(setup.budget, self.trainer.num_parameters)
        self.step = step

    def codec(self):
        return BitCodec(self.trainer.num_parameters)

    def update(self, number, model, total, weight):
        return (model + self.step * np.sign(2 * total - weight)).astype(np.float32)

    def release_event(self):
        return self.protection.event()


class SignsClient(Client):
    def __init__(self, setup, *, learning_rate):
        super().__init__(setup)
        self.protection = KeptSigns(setup.budget, self.trainer.num_parameters)
        self.learning_rate = learning_rate

    def codec(self, task):
        return BitCodec(self.trainer.num_parameters)

    def event(self, task):
        self.require_model(task)
        return self.protection.event()

    def train(self, task, data):
        self.trainer.load(task.model)
        self.trainer.train(
            data.images,
            data.labels,
            indices=data.indices,
            epochs=1,
            batch_size=16,
            lr=self.learning_rate,
            rng=self.rng(task, "local training"),
        )
        return self.trainer.parameters() > task.model

    def privatize(self, update, task, noise):
        return self.protection.flip(update, noise)
'''
CHOICE = """
# Signs of the update, each randomised by a protection of its own.
name: signs
step: 0.01
learning_rate: 0.1
server: {_target_: .signs.Signs}
client: {_target_: .signs.SignsClient}
"""
ITS_TEST = """
from fl_app.testing import Federation, assert_answers_alike, assert_release_follows_event
from fl_app.testing import random_data
from murmur.privacy import Budget
from signs import Signs, SignsClient


def test_signs(tmp_path):
    both = [random_data(30, seed=1), random_data(30, seed=2)]
    federation = Federation(
        tmp_path / "run",
        lambda setup: Signs(setup, step=0.1),
        lambda setup: SignsClient(setup, learning_rate=0.1),
        both,
        budget=Budget(4.0, 1e-5, rounds=2),
    )
    assert_release_follows_event(federation.client, federation.task(), *both, runs=500)
    assert_answers_alike(federation.client, federation.task(), both[0])
    assert federation.run().any()
"""
MEDIAN = '''
"""The geometric median of rows, by Weiszfeld's steps."""

import numpy as np


class GeometricMedian:
    def __init__(self, cohort_size, *, steps):
        if steps < 1:
            raise ValueError(f"steps={steps}: must be at least 1")
        self.steps = steps

    def aggregate(self, rows):
        middle = rows.mean(axis=0)
        for _ in range(self.steps):
            weights = 1 / np.maximum(np.linalg.norm(rows - middle, axis=1), 1e-9)
            middle = weights @ rows / weights.sum()
        return middle
'''
RULE = """
# The geometric median (Weiszfeld 1937).
_target_: .medians.GeometricMedian
_partial_: true
steps: 20
"""


def murmur(folder, *words):
    """`murmur` with the classes of ``folder``, in a process of its own."""
    command = [sys.executable, "-m", "fl_app", "--config-dir", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def written(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip("\n"), encoding="utf-8")


def rows_of(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def test_an_algorithm_with_a_protection_of_its_own_in_one_file(tmp_path):
    files = {"signs.py": ALGORITHM, "conf/strategy/signs.yaml": CHOICE, "test_signs.py": ITS_TEST}
    written(tmp_path, files)
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_signs.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert tested.returncode == 0, tested.stdout
    done = murmur(tmp_path, "strategy=signs", *SMALL, f"run_dir={tmp_path}/run")
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert rows_of(tmp_path / "run")[-1]["answered"] == 8
    assert 0 < metrics["epsilon_proven"] <= 4


def test_a_geometric_median_in_a_folder_of_ones_own(tmp_path, monkeypatch):
    written(tmp_path, {"medians.py": MEDIAN, "conf/aggregation/geometric_median.yaml": RULE})
    words = ["strategy=robust", "aggregation=geometric_median", *SMALL]
    done = murmur(tmp_path, *words, f"run_dir={tmp_path}/run")
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "run")
    assert rows[-1]["accuracy"] > rows[0]["accuracy"] + 0.2
    refused = murmur(tmp_path, *words, "aggregation.steps=0", f"run_dir={tmp_path}/other")
    assert refused.returncode == 2
    assert "aggregation.steps=0: must be at least 1" in refused.stderr
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    median = own_part(".medians.GeometricMedian")(5, steps=50)
    hostile = np.array([[1.0, 0.0], [1.1, 0.0], [0.9, 0.0], [1.0, 0.1], [1e6, -1e6]])
    assert median.aggregate(hostile) == pytest.approx([1.0, 0.0], abs=0.1)
