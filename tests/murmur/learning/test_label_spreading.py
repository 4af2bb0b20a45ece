"""Labels spread along a pool's own structure, and noise alone spreads nothing."""

import numpy as np
import pytest

from murmur.learning.data.datasets import digits
from murmur.learning.features import scattering
from murmur.learning.linear_model import centred, ridge, to_parameters, weights_of
from murmur.learning.models import mlp
from murmur.learning.public_labels import LabelSpreading, seeds_of, spread
from murmur.learning.training.trainer import Trainer

SPREADING = LabelSpreading(components=30)


@pytest.fixture(scope="module")
def pool():
    data = digits()
    features = scattering(components=30)
    fitted = features.fit(data.train.images[:500])
    images = features.apply(fitted, data.train.images[:500])[:, :, 0, 0]
    return images, data.train.labels[:500]


@pytest.fixture(scope="module")
def graph(pool):
    return SPREADING.graph(pool[0])


def test_graph_is_symmetric_and_normalised(graph):
    assert abs(graph - graph.T).max() < 1e-12
    assert graph.diagonal().max() == 0
    from scipy.sparse.linalg import eigsh

    assert eigsh(graph, k=1, return_eigenvectors=False)[0] == pytest.approx(1, abs=1e-6)


def test_steps_lead_to_the_closed_form(graph):
    seeds = np.eye(500)[:, :3]
    found = spread(graph, seeds, 0.5, 60)
    expected = 0.5 * np.linalg.solve(np.eye(500) - 0.5 * graph.toarray(), seeds)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_seeds_are_the_most_confident_of_each_class_and_no_more_than_it_has():
    scores = np.array([[3.0, 0], [2, 0], [9, 0], [0, 1]])
    assert seeds_of(scores, 2).tolist() == [[1, 0], [0, 0], [1, 0], [0, 1]]


def test_weak_model_becomes_a_good_one(pool, graph):
    images, labels = pool
    weak = ridge(images[:30], centred(labels[:30], 10), 1.0)
    noise = np.random.default_rng(1).normal(0, 0.1, weak.shape)
    refined = SPREADING.refine(graph, images, images @ (weak + noise))
    before = np.mean((images @ (weak + noise)).argmax(axis=1) == labels)
    after = np.mean((images @ refined).argmax(axis=1) == labels)
    assert before < 0.75
    assert after > before + 0.1


def test_pure_noise_gives_chance(pool, graph):
    images, labels = pool
    draws = np.random.default_rng(2).normal(size=(20, 30, 10))
    scores = [
        np.mean((images @ SPREADING.refine(graph, images, images @ w)).argmax(axis=1) == labels)
        for w in draws
    ]
    assert abs(np.mean(scores) - 0.1) < 0.05


def test_ridge_is_the_closed_form_and_weights_survive_the_trainer():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(20, 6)).astype(np.float32), rng.normal(size=(20, 4))
    weights = ridge(x, y, 2.0)
    expected = np.linalg.solve(x.T.astype(float) @ x + 2 * np.eye(6), x.T @ y)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    few = ridge(x, y, 2.0, components=4)
    np.testing.assert_allclose(few[:4], ridge(x[:, :4], y, 2.0))
    assert not few[4:].any()
    trainer = Trainer(
        lambda input_shape, num_classes: mlp(input_shape, num_classes, hidden=[]), (6, 1, 1), 4
    )
    parameters = to_parameters(weights)
    trainer.load(parameters)
    np.testing.assert_allclose(trainer.logits(x[:, :, None, None]), x @ weights, atol=1e-5)
    np.testing.assert_allclose(weights_of(trainer, parameters), weights, atol=1e-6)


@pytest.mark.parametrize(
    "changed",
    [
        {"passes": [[0, 0.9]]},
        {"passes": [[1, 1]]},
        {"passes": [1, 2]},
        {"steps": 0},
        {"penalty": 0},
    ],
)
def test_bad_settings_are_refused(changed):
    with pytest.raises(ValueError, match=next(iter(changed))):
        LabelSpreading(**changed)
