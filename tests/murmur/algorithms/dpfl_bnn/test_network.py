"""Binary networks: straight-through gradients, clipping, local normalisation, what is shared."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional

from murmur.algorithms.dpfl_bnn.network import (
    BatchNorm,
    BinaryLinear,
    bnn,
    refresh_statistics,
    sign,
)
from murmur.learning.training.trainer import Trainer
from murmur.random import experiment_rng
from tests.backend_gradients import in_room, model_order

MNIST = (1, 28, 28)
SMALL = (1, 8, 8)
ADAM = {"optimizer": "adam", "betas": (0.5, 0.999)}


def trainer(shape=SMALL, classes=4, **settings):
    settings = {"channels": [3, 5], "hidden": 6, **settings}
    return Trainer(partial(bnn, **settings), shape, classes)


def examples(count=40, shape=SMALL, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    images = rng.random((count, *shape), dtype=np.float32) * 0.3
    for image, label in zip(images, labels, strict=True):
        image[:, 2 * label : 2 * label + 2] += 1
    return images, labels


@pytest.mark.parametrize(
    ("settings", "bits", "kept"),
    [({}, 81_848, 568), ({"bias": True}, 81_958, 568), ({"bn": "none"}, 81_848, 0)],
)
def test_shared_vector_holds_the_papers_number_of_bits_and_no_normalisation(settings, bits, kept):
    it = Trainer(partial(bnn, **settings), MNIST, 10)
    assert it.num_parameters == bits
    assert it.flat.num_buffers == kept


def test_sign_of_zero_is_plus_one_in_every_layer():
    assert sign(torch.tensor([-0.0, 0.0, -1e-30, 2.0])).tolist() == [1, 1, -1, 1]
    layer = BinaryLinear(2, 1, bias=False)
    layer.weight.data = torch.tensor([[0.0, -0.3]])
    assert layer(torch.tensor([[1.0, 10.0]])).item() == -9


def test_only_signs_of_the_weights_matter_to_the_output():
    it = trainer()
    images, _ = examples()
    weights = it.initial(np.random.default_rng(1))
    it.load(weights)
    expected = it.logits(images)
    it.load(np.where(weights >= 0, 1, -1).astype(np.float32))
    assert np.array_equal(it.logits(images), expected)


@pytest.mark.parametrize("settings", [{}, {"bias": True}, {"bn": "none"}, {"channels": []}])
@pytest.mark.parametrize("batch", [7, 1])
def test_gradient_written_by_hand_is_autograds_straight_through_gradient(settings, batch):
    it = trainer(**settings)
    images, labels = examples(batch)
    it.load(it.initial(np.random.default_rng(2)))
    module = it.flat.module
    norms = [m for m in module.modules() if isinstance(m, BatchNorm)]
    for norm in norms:
        norm.weight.uniform_(-1, 1.5, generator=torch.Generator().manual_seed(1))
        norm.bias.uniform_(-1, 1, generator=torch.Generator().manual_seed(2))
    backend = it._backend
    x = in_room(backend, images)
    y = functional.one_hot(torch.from_numpy(labels), 4).float()
    module.train()
    statistics = it.flat.buffers()
    with backend.training(np.random.default_rng(0)):
        gradient = backend.gradient(x, y).clone()
        found_local = backend.local.gradient.clone()
    moved = it.flat.buffers()
    it.flat.load_buffers(statistics)
    parameters = list(module.parameters())
    local = [b.clone().requires_grad_() for norm in norms for b in (norm.weight, norm.bias)]
    for index, norm in enumerate(norms):
        norm.weight, norm.bias = local[2 * index], local[2 * index + 1]
    loss = functional.cross_entropy(module(torch.from_numpy(images)), torch.from_numpy(labels))
    gradients = torch.autograd.grad(loss, parameters + local, allow_unused=True)
    names = [name for name, _ in module.named_parameters()]
    found = model_order(backend, gradient)
    expected = it.flat.flatten(dict(zip(names, gradients[: len(names)], strict=True)))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-6)
    assert np.abs(expected).max() > 1e-4
    if local:
        expected_local = torch.cat([g.flatten() for g in gradients[len(names) :]])
        np.testing.assert_allclose(found_local, expected_local, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(it.flat.buffers(), moved, rtol=1e-5, atol=1e-6)


def test_training_learns_moves_normalisation_and_keeps_weights_within_one():
    it = trainer()
    images, labels = examples(200)
    it.load(it.initial(np.random.default_rng(3)))
    fresh = it.flat.buffers()
    it.train(images, labels, rng=np.random.default_rng(4), batch_size=32, steps=60, lr=0.1, **ADAM)
    assert np.abs(it.parameters()).max() == 1
    assert not np.array_equal(it.flat.buffers(), fresh)
    refresh_statistics(it, images)
    assert it.evaluate(images, labels).accuracy > 0.9


def test_same_arguments_give_the_same_bits_whatever_ran_before():
    it = trainer()
    images, labels = examples()
    start, fresh = it.initial(np.random.default_rng(5)), it.flat.buffers()

    def run():
        it.load(start)
        it.flat.load_buffers(fresh)
        rng = experiment_rng(1, "local training")
        it.train(images, labels, rng=rng, batch_size=16, steps=5, lr=0.1, **ADAM)
        return it.parameters(), it.flat.buffers()

    first = run()
    it.train(images, labels, rng=np.random.default_rng(6), batch_size=8, steps=3, lr=0.3)
    second = run()
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])


def test_last_batch_of_one_example_leaves_finite_statistics():
    it = trainer()
    images, labels = examples(17)
    it.load(it.initial(np.random.default_rng(7)))
    it.train(images, labels, rng=np.random.default_rng(8), batch_size=16, epochs=3, lr=0.1, **ADAM)
    assert np.all(np.isfinite(it.flat.buffers()))
    assert np.all(np.isfinite(it.parameters()))


def test_refreshed_statistics_are_those_of_the_examples_and_change_no_weight():
    it = trainer(channels=[])
    images, _ = examples(50)
    it.load(it.initial(np.random.default_rng(9)))
    weights = it.parameters()
    refresh_statistics(it, images)
    first = next(m for m in it.flat.module.modules() if isinstance(m, BatchNorm))
    layer = next(m for m in it.flat.module.modules() if isinstance(m, BinaryLinear))
    outputs = images.reshape(50, -1) @ np.sign(layer.weight.detach().numpy()).T
    np.testing.assert_allclose(first.running_mean, outputs.mean(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(first.running_var, outputs.var(axis=0, ddof=1), rtol=1e-4)
    assert np.array_equal(it.parameters(), weights)
    assert first.momentum == BatchNorm.momentum


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"channels": [0, 4]}, "channels="),
        ({"hidden": 0}, "hidden=0"),
        ({"bn": "global"}, "bn='global'"),
        ({"channels": [2, 2, 2, 2]}, "input_shape="),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        trainer(**settings)
