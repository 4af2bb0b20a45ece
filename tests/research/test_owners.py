"""Direct runs, by which settings are chosen, come to what whole runs come to."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fl_app.config.compose import compose
from fl_app.run.validated import ValidatedRun
from research.owners import masks
from research.owners.choose import GRIDS, candidates
from research.owners.rounds import Direct, Owners
from tests.fl_app.running import run_inline

SMALL = [
    "strategy=gradient_rounds",
    "engine=inline",
    "dataset=digits",
    "federation.public=0",
    "federation.num_clients=20",
    "federation.num_rounds=3",
    "privacy.noise=seeded",
    "privacy.secure_aggregation=simulated",
]


def both(tmp_path, *words):
    """The models of a whole run and of a direct one, and the scores of both."""
    folder = run_inline(tmp_path, *words, small=SMALL)
    experiment = ValidatedRun(compose([*SMALL, *words]))
    direct = Direct(experiment, held=False)
    model = direct.model(experiment)
    experiment = ValidatedRun(compose([*SMALL, *words]))
    found = direct.train(experiment)
    scores = json.loads((folder.path / "metrics.json").read_text())
    return folder.load_checkpoint().run.model, model, scores, found


@pytest.mark.parametrize(
    "words",
    [
        ["model=linear"],
        ["model=centred"],
        ["strategy.logit_adjustment=1", "strategy.flatten=0.6", "partition=dirichlet"],
    ],
)
def test_without_noise_both_are_the_same(tmp_path, words):
    whole, direct, scores, found = both(
        tmp_path, "privacy.epsilon=inf", "strategy.average=0.5", *words
    )
    np.testing.assert_allclose(direct, whole, atol=2e-3)
    assert found["accuracy"] == pytest.approx(scores["accuracy"], abs=0.006)


def test_noise_is_as_large_in_both(tmp_path):
    words = ["privacy.epsilon=1", "privacy.secure_sum={minimum: 0.9, colluders: 1}"]
    whole, direct, _, _ = both(tmp_path, *words)
    assert np.std(direct) == pytest.approx(np.std(whole), rel=0.1)


def test_held_owners_are_no_clients():
    experiment = ValidatedRun(compose(SMALL))
    direct = Direct(experiment, held=True)
    assert direct.owners.count == 18
    together = len(direct.owners.labels) + len(direct.test.labels)
    assert together == sum(map(len, experiment.population.shards))


def test_a_grid_is_every_combination():
    grid = {"strategy.length": (1, 2), "strategy.average": (0, 0.5)}
    assert len(candidates(grid)) == 4
    assert ["strategy.length=2", "strategy.average=0"] in candidates(grid)
    assert all(GRIDS.values())


def test_sparse_owners_have_the_gradients_of_dense_ones() -> None:
    rng = np.random.default_rng(0)
    features = rng.random((60, 40)).astype(np.float32)
    features[features < 0.9] = 0
    labels = rng.integers(0, 3, 60)
    whose = np.sort(np.r_[np.arange(7), rng.integers(0, 7, 53)])
    weights, biases = rng.normal(size=(40, 3)), rng.normal(size=3)
    dense = Owners(features, labels, whose)
    sparse = Owners(csr_matrix(features), labels, whose)
    for clip, flatten in ((0.1, 0.0), (100.0, 0.0), (0.1, 0.6)):
        settings = SimpleNamespace(constant=0.3, balance=0.5, logit_adjustment=0.5, flatten=flatten)
        expected = dense.gradients(weights, biases, settings, clip)
        found = sparse.gradients(weights, biases, settings, clip)
        assert np.allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("moved", "said"), [(0.0, "yes"), (1e-3, "no")])
def test_masks_are_compared_by_the_models(monkeypatch, capsys, moved, said):
    models = {"on": np.zeros(3, np.float32) + np.float32(moved), "simulated": np.zeros(3)}
    monkeypatch.setattr(masks, "_run", lambda name, how: (models[how], 2.0))
    masks.table(["flights"])
    assert capsys.readouterr().out.splitlines()[-1] == f"| `flights` | 3 | 2 | 2 | {said} |"
