"""Clients trained as one stack, against the same clients trained one after the other."""

from functools import partial

import numpy as np
import pytest
import torch

from murmur.algorithms.dpfl_bnn.network import bnn
from murmur.learning import models
from murmur.learning.clustering import autoencoder
from murmur.learning.training.stack import ClientBatch
from murmur.learning.training.trainer import Trainer

SHAPE, CLASSES = (1, 16, 16), 4
MODELS = {
    "mlp": partial(models.mlp, hidden=[9]),
    "logistic": partial(models.mlp, hidden=[]),
    "cnn": partial(models.cnn_16, channels=[3, 4]),
    "strided": partial(models.cnn_small, channels=[2, 3], hidden=[5]),
    "tanh": partial(models.cnn_tanh, channels=[2, 3], hidden=[5]),
    "groupnorm": partial(models.cnn_groupnorm, channels=[4, 4, 4, 4], groups=2, hidden=[5]),
}


def examples(count: int = 150) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    labels = rng.integers(0, CLASSES, count)
    images = rng.normal(size=(count, *SHAPE)) + labels[:, None, None, None] / CLASSES
    return images.astype(np.float32), labels


def shares(trainer: Trainer, sizes: list[int], seed: int = 0) -> list[ClientBatch]:
    """Clients of several sizes, with a start and a stream of their own; some with a correction."""
    rng = np.random.default_rng(7)
    rows = np.split(rng.permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    starts = [trainer.initial(np.random.default_rng(k)) for k in range(len(sizes))]
    corrections = [None, *(0.1 * start for start in starts[1:])]
    return [
        ClientBatch(start, own, np.random.default_rng((seed, k)), correction)
        for k, (start, own, correction) in enumerate(zip(starts, rows, corrections, strict=True))
    ]


def one_by_one(trainer: Trainer, data, clients: list[ClientBatch], **how) -> np.ndarray:
    results = []
    for client in clients:
        trainer.load(client.start)
        trainer.train(
            *data, indices=client.indices, rng=client.rng, correction=client.correction, **how
        )
        results.append(trainer.parameters())
    return np.stack(results)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "how",
    [
        {"epochs": 2, "batch_size": 8},
        {"steps": 7, "batch_size": 16},
        {"epochs": 1, "batch_size": 1000, "proximal_mu": 0.5},
        {"steps": 3, "batch_size": 5, "proximal_mu": 0.1},
    ],
    ids=str,
)
def test_a_stack_is_its_clients_one_after_the_other(model, how) -> None:
    trainer, data = Trainer(MODELS[model], SHAPE, CLASSES), examples()
    sizes = [40, 3, 16, 41, 1]
    expected = one_by_one(trainer, data, shares(trainer, sizes), lr=0.05, **how)
    present = trainer.parameters()
    result = trainer.stack.train(*data, shares(trainer, sizes), lr=0.05, **how)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=2e-6)
    starts = np.stack([share.start for share in shares(trainer, sizes)])
    assert (np.abs(result - starts).max(axis=1) > 1e-3).all()
    assert np.array_equal(trainer.parameters(), present)


def test_the_same_stack_gives_the_same_bits() -> None:
    trainer, data = Trainer(MODELS["cnn"], SHAPE, CLASSES), examples()
    how = {"epochs": 1, "batch_size": 8, "lr": 0.1}
    first, again, other = (
        trainer.stack.train(*data, shares(trainer, [20, 30], seed), **how) for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_no_steps_leave_the_starts() -> None:
    trainer, data = Trainer(MODELS["mlp"], SHAPE, CLASSES), examples()
    clients = shares(trainer, [20, 30])
    result = trainer.stack.train(*data, clients, steps=0, batch_size=8, lr=0.1)
    assert np.array_equal(result, np.stack([client.start for client in clients]))


def test_mixed_precision_rounds_and_learns_as_well() -> None:
    data, sizes = examples(400), [150, 150]
    trainers = [
        Trainer(MODELS["cnn"], SHAPE, CLASSES, mixed_precision=mixed) for mixed in (False, True)
    ]
    how = {"epochs": 10, "batch_size": 16, "lr": 0.05}
    exact, mixed = (t.stack.train(*data, shares(t, sizes), **how) for t in trainers)
    assert mixed.dtype == np.float32
    assert not np.array_equal(exact, mixed)
    trainer = trainers[0]

    def loss(parameters: np.ndarray) -> float:
        trainer.load(parameters)
        return trainer.evaluate(*data).loss

    start = loss(shares(trainer, sizes)[0].start)
    for one, other in zip(exact, mixed, strict=True):
        assert loss(one) < 0.9 * start
        assert loss(other) == pytest.approx(loss(one), rel=0.05)


@pytest.mark.parametrize(
    "model",
    [partial(models.mlp, hidden=[9], dropout=0.5), autoencoder, bnn],
    ids=["dropout", "own training", "statistics"],
)
def test_models_that_cannot_be_stacked_have_no_stack(model) -> None:
    trainer = Trainer(model, (1, 28, 28), CLASSES)
    assert trainer.stack is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.zeros(3, np.int64)}, "labels="),
        ({"labels": np.full(150, CLASSES)}, r"labels=4\.\.4: must be from 0 to 3"),
        ({"indices": np.array([150])}, r"indices=150\.\.150"),
        ({"indices": np.array([], np.int64)}, "at least one example"),
        ({"lr": 0.0}, "lr="),
        ({"batch_size": 0}, "batch_size=0"),
        ({"steps": None}, "set either epochs or steps"),
    ],
)
def test_bad_arguments_are_named(change, message) -> None:
    trainer, (images, labels) = Trainer(MODELS["mlp"], SHAPE, CLASSES), examples()
    how = {"labels": labels, "indices": np.arange(5), "lr": 0.1, "batch_size": 8, "steps": 1}
    how |= change
    share = ClientBatch(trainer.parameters(), how.pop("indices"), np.random.default_rng(0))
    with pytest.raises(ValueError, match=message):
        trainer.stack.train(images, how.pop("labels"), [share], **how)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("model", MODELS)
def test_a_gpu_agrees_with_the_processor(model) -> None:
    data, how = examples(), {"epochs": 2, "batch_size": 8, "lr": 0.05}
    here, there = (Trainer(MODELS[model], SHAPE, CLASSES, device=d) for d in ("cpu", "cuda"))
    expected = one_by_one(here, data, shares(here, [40, 25]), **how)
    for result in (
        one_by_one(there, data, shares(here, [40, 25]), **how),
        there.stack.train(*data, shares(here, [40, 25]), **how),
    ):
        np.testing.assert_allclose(result, expected, rtol=1e-2, atol=1e-3)
