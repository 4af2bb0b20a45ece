from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from murmur.learning import models
from murmur.learning.models import Dropout, Flatten, Network, initialise
from murmur.learning.training.backends import AutogradBackend
from murmur.learning.training.parameters import FlatModel
from murmur_kernels.sequences import ManualBackend, supports
from tests.backend_gradients import batch, gradient, in_room, same_dropout
from tests.murmur.learning.training.test_trainer import examples, rng, trained, trainer

GRAY, COLOUR = (1, 28, 28), (3, 29, 31)


def sequence(layers: Sequence[nn.Module]) -> Any:
    return lambda input_shape, num_classes: Network(layers)


CASES = {
    "mlp": (models.mlp, (3, 8, 8)),
    "mlp deep": (partial(models.mlp, hidden=[30, 20], dropout=0.3), GRAY),
    "logistic": (partial(models.mlp, hidden=[]), GRAY),
    "no bias": (
        sequence([Flatten(), nn.Linear(784, 9, bias=False), nn.Tanh(), nn.Linear(9, 10)]),
        GRAY,
    ),
    "tanh then dropout": (
        sequence([Flatten(), nn.Linear(784, 9), nn.Tanh(), Dropout(0.5), nn.Linear(9, 10)]),
        GRAY,
    ),
    "cnn_16": (models.cnn_16, GRAY),
    "cnn_16 colour": (models.cnn_16, COLOUR),
    "cnn_small": (models.cnn_small, GRAY),
    "cnn_small pooled": (partial(models.cnn_small, downsample="pool"), GRAY),
    "cnn_small hidden": (partial(models.cnn_small, hidden=[12], dropout=0.2), COLOUR),
    "cnn_tanh": (models.cnn_tanh, GRAY),
    "cnn_privatekt": (models.cnn_privatekt, GRAY),
    "cnn_privatekt relu": (partial(models.cnn_privatekt, conv_activation=True), (3, 16, 16)),
    "convolution straight to linear": (
        sequence([nn.Conv2d(1, 2, 3, bias=False), Flatten(), nn.Linear(1352, 10)]),
        GRAY,
    ),
    "strided convolutions": (
        sequence(
            [
                nn.Conv2d(3, 4, 5, stride=(2, 3)),
                nn.ReLU(),
                nn.Conv2d(4, 5, (3, 2), stride=2),
                nn.Tanh(),
                nn.Conv2d(5, 6, 2, stride=2, bias=False),
                Flatten(),
                nn.Linear(36, 10),
            ]
        ),
        COLOUR,
    ),
    "strided, one channel, padded, dilated": (
        sequence(
            [
                nn.Conv2d(1, 4, 5, stride=2),
                nn.ReLU(),
                nn.Conv2d(4, 5, 3, stride=2, padding=1),
                nn.Conv2d(5, 6, 2, dilation=2),
                Flatten(),
                nn.Linear(96, 10),
            ]
        ),
        GRAY,
    ),
    "two convolutions, no pooling": (
        sequence(
            [
                nn.Conv2d(1, 2, 3, padding=(0, 1)),
                nn.ReLU(),
                nn.Conv2d(2, 3, 5),
                nn.MaxPool2d((2, 3)),
                Flatten(),
                nn.Linear(264, 10),
            ]
        ),
        GRAY,
    ),
}


def model(name: str) -> tuple[FlatModel, tuple[int, int, int]]:
    build, shape = CASES[name]
    module = build(input_shape=shape, num_classes=10)
    initialise(module, np.random.default_rng(0))
    return FlatModel(module), shape


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_autograd(name: str) -> None:
    flat, shape = model(name)
    other, _ = model(name)
    assert supports(flat.module)
    manual, autograd = ManualBackend(flat, shape), AutogradBackend(other, shape)
    # The last size again: buffers are reused.
    for size in (5, 1, 5):
        ours = gradient(manual, flat, *batch(shape, size))
        theirs = gradient(autograd, other, *batch(shape, size))
        assert torch.equal(flat.vector, other.vector)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("name", ["mlp deep", "cnn_16"])
@pytest.mark.parametrize("weight_factor", [1.0, 0.75])
def test_descent_is_the_gradient_step_in_one(name: str, weight_factor: float) -> None:
    flat, shape = model(name)
    backend = ManualBackend(flat, shape)
    images, y = batch(shape, 6)
    expected = weight_factor * flat.vector - 0.5 * gradient(backend, flat, images, y)
    same_dropout(flat)
    x = in_room(backend, images)
    with backend.training(np.random.default_rng(0)):
        backend.sgd_step(x, torch.from_numpy(y), 0.5, weight_factor)
    torch.testing.assert_close(flat.vector, expected, rtol=1e-5, atol=1e-6)


def test_buffers_of_many_batch_sizes_do_not_pile_up() -> None:
    flat, shape = model("mlp")
    backend = ManualBackend(flat, shape)
    for size in range(1, 40):
        gradient(backend, flat, *batch(shape, size))
    assert backend._plan.cache_info().currsize <= 8


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), Flatten(), nn.Linear(5408, 10)],
        [nn.Conv2d(2, 8, 3, groups=2), Flatten(), nn.Linear(5408, 10)],
        [nn.Conv2d(1, 8, 3, padding="same"), Flatten(), nn.Linear(6272, 10)],
        [nn.Conv2d(1, 8, 3), nn.MaxPool2d(3, 2), Flatten(), nn.Linear(1152, 10)],
        [Flatten(), nn.Linear(784, 10), nn.Tanh(), nn.ReLU(), nn.Linear(10, 10)],
        [Flatten(), nn.Linear(784, 10), nn.ReLU()],
        [Dropout(0.1), Flatten(), nn.Linear(784, 10)],
        [nn.Flatten(), nn.Linear(784, 10)],
    ],
)
def test_other_sequences_are_left_to_autograd(layers: list[nn.Module]) -> None:
    assert not supports(Network(layers))
    assert not supports(nn.ModuleList(layers))


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adam"}])
def test_a_large_model_keeps_no_buffers_and_has_the_same_bits(monkeypatch, settings: Any) -> None:
    expected = trained(batch_size=16, **settings)
    monkeypatch.setattr("murmur.learning.training.trainer.MIN_LARGE_PARAMETERS", 1)
    monkeypatch.setattr("murmur_kernels.sequences.MIN_LARGE_PARAMETERS", 1)
    subject = trainer()
    made = vars(subject._backend).keys()
    before = set(made)
    images, labels = examples()  # 90: the last batch of an epoch is smaller
    subject.train(images, labels, rng=rng(1), epochs=2, batch_size=16, lr=0.1, **settings)
    assert np.array_equal(subject.parameters(), expected)
    assert set(made) == before and not subject._backend._plan.cache_info().currsize
