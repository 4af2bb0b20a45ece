"""A run that is killed at any write of its state knows all that it knew, beside its results."""

import json
import os
import shutil

import numpy as np
import pytest

from fl_app.run.model_folder import FOLDER
from fl_app.run.results import RunFolder
from murmur.round.question import Outcome
from murmur.round.run_state import RunState
from tests.fl_app.running import run_inline

COMMON = [
    *("engine=inline", "dataset=digits", "privacy.noise=seeded", "tracking=none"),
    *("federation.num_clients=6", "federation.num_rounds=2", "model=linear"),
]
SUMS = ["privacy.threat=secure_aggregation", "privacy.secure_aggregation=on"]
RUNS = {
    "sums, and an evaluation in sums": [
        *("strategy=fedavg", "protection=distributed", "privacy=local", "privacy.epsilon=8"),
        *(*SUMS, "evaluation=protected_counts", "evaluation.counts.noise=gaussian"),
    ],
    "secret cohorts and canaries": [
        *("strategy=dp_fedavg", "privacy.epsilon=8", "federation.schedule=poisson"),
        *("audit=canaries", "audit.canaries=16", "federation.clients_per_round=3"),
    ],
    "an answer before the rounds": [
        *("strategy=gradient_rounds", "features=none", "model=centred", "privacy.epsilon=8"),
    ],
}
STATE = ("checkpoint.safetensors", "secure-sum.safetensors", "evaluation-sum.safetensors")


def known(state):
    """All of a state, to be compared."""
    arrays = {name: (v.dtype.str, v.shape, v.tobytes()) for name, v in state.to_arrays().items()}
    return arrays, json.dumps(state.facts(), sort_keys=True)


class Watched:
    """What a run has saved, by round and whether evaluated; a copy before each write."""

    def __init__(self, folder, copies=None):
        self.folder = folder
        self.copies = copies
        self.count = 0
        self.states = {}

    def run(self, words, monkeypatch):
        replace, save = os.replace, RunFolder.save_checkpoint

        def replaced(draft, path, **options):
            if self.copies is not None and os.path.basename(path) in STATE:
                shutil.copytree(self.folder, self.copies / str(self.count) / self.folder.name)
                self.count += 1
            replace(draft, path, **options)

        def saved(folder, checkpoint):
            run = checkpoint.run
            self.states[run.round, run.trained is None] = known(run)
            save(folder, checkpoint)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replaced)
            patch.setattr(RunFolder, "save_checkpoint", saved)
            return run_inline(self.folder, small=words)


def left(run):
    """The statement, the participations and the model that a run has left."""
    counts = np.load(run.path / "participations.npz")
    model = (run.path / FOLDER / "model.safetensors").read_bytes()
    return run.statement(), counts["counts"].tolist(), model


FIRST, *OTHERS = RUNS


@pytest.mark.parametrize("name", [pytest.param(FIRST, marks=pytest.mark.thorough), *OTHERS])
def test_a_run_killed_at_any_write_knows_all_that_it_knew(tmp_path, monkeypatch, name):
    words = [*COMMON, *RUNS[name]]
    whole = Watched(tmp_path / "run", tmp_path / "copies")
    end = left(whole.run(words, monkeypatch))
    assert whole.count >= 2 * 2 + 2
    for place in range(whole.count):
        again = Watched(whole.copies / str(place) / "run")
        assert left(again.run(words, monkeypatch)) == end, place
        for key, state in again.states.items():
            assert state == whole.states[key], (place, key)


def test_a_state_comes_back_from_its_arrays_and_facts():
    state = RunState(
        3,
        np.ones(2, np.float32),
        trained=Outcome(4, answered=[1], accepted=True, failed={2: "gone"}),
        participations={1: 2, 5: 1},
        before={1: 1},
        cohort=(5, np.array([0, 2])),
        num_nodes=3,
        algorithm={"control": np.zeros(2)},
        sums={"least_survivors": np.array([2]), "blame": np.zeros(3, np.uint8)},
        evaluation={"clients": np.array([1])},
        canaries={"scores": np.ones(4)},
    )
    facts = json.loads(json.dumps(state.facts()))
    assert known(RunState.from_arrays(state.to_arrays(), facts)) == known(state)
