"""Constants of a problem whose constants are known, estimated in a run without noise."""

import numpy as np
import pytest

from murmur.algorithms.nbafl.convergence import EstimatedConstants
from murmur.learning.data.examples import LocalData
from murmur.learning.models import mlp
from murmur.learning.training.trainer import Trainer

CLIENTS, EACH = 4, 30


@pytest.fixture(scope="module")
def problem():
    """Logistic regression on four noisy patterns."""
    rng = np.random.default_rng(0)
    trainer = Trainer(
        lambda input_shape, num_classes: mlp(input_shape, num_classes, hidden=[]), (1, 4, 4), 4
    )
    labels = rng.integers(0, 4, CLIENTS * EACH)
    images = rng.normal(0, 0.3, (CLIENTS * EACH, 1, 4, 4)).astype(np.float32)
    images[np.arange(len(labels)), 0, labels, :] += 1
    rows = np.split(np.arange(len(labels)), CLIENTS)
    data = [LocalData(images, labels, own) for own in rows]
    return trainer, data, trainer.initial(np.random.default_rng(1))


def trained(trainer, data, lr=0.3):
    def local(number, client, weights):
        trainer.load(weights)
        rng = np.random.default_rng([number, client])
        own = data[client]
        trainer.train(
            own.images, own.labels, indices=own.indices, rng=rng, batch_size=10, epochs=1, lr=lr
        )
        return trainer.parameters()

    return local


def run(problem, rounds=6, local=None):
    trainer, data, start = problem
    rng = np.random.default_rng(2)
    return EstimatedConstants.run(
        trainer, data, start, local or trained(trainer, data), rounds, rng
    )


def test_constants_are_possible_for_softmax_regression(problem):
    it = run(problem)
    _, data, _ = problem
    # The Hessian of the cross-entropy is at most ½ E‖x‖² with the bias's 1 in x.
    images = data[0].images
    squares = np.sum(images.reshape(len(images), -1) ** 2, axis=1) + 1
    assert 0 < it.smoothness <= 0.5 * squares.max()
    assert it.lipschitz <= np.sqrt(2 * squares.max())
    assert 0 < it.pl <= it.smoothness
    assert it.dissimilarity >= 1
    assert it.gap == it.losses[0]
    assert 0 < it.curvature < it.smoothness


def test_contraction_is_that_of_the_losses(problem):
    it = run(problem)
    assert len(it.losses) == 7
    assert it.contraction**6 * it.losses[0] == pytest.approx(it.losses[-1])
    assert it.contraction < 1


def test_curvature_predicts_what_noise_costs(problem):
    it = run(problem)
    trainer, data, start = problem
    weights = start
    local = trained(trainer, data)
    for number in range(1, 7):
        parts = [local(number, i, weights) for i in range(CLIENTS)]
        weights = np.mean(parts, axis=0, dtype=np.float64).astype(np.float32)
    rng, sigma = np.random.default_rng(3), 0.05

    def loss(parameters):
        trainer.load(parameters.astype(np.float32))
        return trainer.evaluate(data[0].images, data[0].labels).loss

    noised = [
        loss(weights + sign * n)
        for n in rng.normal(0, sigma, (200, len(weights)))
        for sign in (1, -1)
    ]
    predicted = it.curvature / 2 * sigma**2 * len(weights)
    assert np.mean(noised) - loss(weights) == pytest.approx(predicted, rel=0.4)


def test_same_arguments_give_the_same_pilot(problem):
    assert run(problem) == run(problem)


def test_a_pilot_that_does_not_learn_is_refused(problem):
    with pytest.raises(ValueError, match="estimate=2: the loss goes from"):
        run(problem, 2, lambda number, client, weights: weights)


def test_a_pilot_that_diverges_is_refused(problem):
    broken = np.full(len(problem[2]), np.nan, np.float32)
    with pytest.raises(ValueError, match="estimate=2: training diverges"):
        run(problem, 2, lambda number, client, weights: broken)


def test_a_pilot_needs_a_round(problem):
    with pytest.raises(ValueError, match="estimate=0: must be at least 1"):
        run(problem, 0)
