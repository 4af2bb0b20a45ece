import random
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from murmur.learning import models
from murmur.learning.process import has_kernels
from murmur.learning.training.backends import AutogradBackend
from murmur.learning.training.trainer import Trainer

SHAPE = (1, 8, 8)
MLP = partial(models.mlp, hidden=[16])
TINY_CNN = partial(models.cnn_small, channels=[2, 3], hidden=[5], dropout=0.3)
GROUPNORM = partial(models.cnn_groupnorm, channels=[4, 4, 4, 4], groups=2, hidden=[5])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def examples(
    count: int = 90, shape: tuple[int, int, int] = SHAPE, classes: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    """Classes that a linear model separates: noise around a random image each."""
    generator = rng(42)
    labels = generator.integers(0, classes, count)
    centres = generator.normal(size=(classes, *shape))
    images = centres[labels] + 0.5 * generator.normal(size=(count, *shape))
    return images.astype(np.float32), labels


def trainer(model: Any = MLP, shape: tuple[int, int, int] = SHAPE, classes: int = 3) -> Trainer:
    result = Trainer(model, shape, classes)
    result.load(result.initial(rng()))
    return result


def trained(model: Any = MLP, shape: tuple[int, int, int] = SHAPE, **settings: Any) -> np.ndarray:
    subject = trainer(model, shape)
    images, labels = examples(shape=shape)
    defaults = {"rng": rng(1), "epochs": 2, "batch_size": 16, "lr": 0.1}
    subject.train(images, labels, **(defaults | settings))
    return subject.parameters()


def plain_loop(
    subject: Trainer, module: nn.Module, optimiser: Any, epochs: int, anchor: list[torch.Tensor]
) -> np.ndarray:
    """What everybody writes, over the same batches."""
    images, labels = (torch.from_numpy(array) for array in examples())
    module.load_state_dict(subject.flat.state_dict())
    order = rng(1)
    for _ in range(epochs):
        for batch in torch.from_numpy(order.permutation(len(images))).split(16):
            optimiser.zero_grad()
            loss = functional.cross_entropy(module(images[batch]), labels[batch])
            for parameter, target in zip(module.parameters(), anchor, strict=False):
                loss = loss + 0.35 * ((parameter - target) ** 2).sum()
            loss.backward()
            optimiser.step()
    return subject.flat.flatten(module.state_dict())


@pytest.mark.parametrize(
    ("settings", "optimiser"),
    [
        ({}, partial(torch.optim.SGD, lr=0.1)),
        ({"optimizer": "adam"}, partial(torch.optim.Adam, lr=0.1)),
    ],
)
def test_training_is_the_loop_that_everybody_writes(settings: Any, optimiser: Any) -> None:
    subject, module = trainer(), MLP(SHAPE, 3)
    reference = plain_loop(subject, module, optimiser(module.parameters()), 3, [])
    np.testing.assert_allclose(trained(epochs=3, **settings), reference, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "theirs"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)]
)
def test_the_proximal_term_is_that_of_the_objective(optimizer: str, theirs: Any) -> None:
    subject, module = trainer(), MLP(SHAPE, 3)
    anchor = subject.initial(rng(9))
    state = subject.flat.state_dict(anchor)
    optimiser = theirs(module.parameters(), lr=0.1)
    pulled = [state[name] for name, _ in module.named_parameters()]
    reference = plain_loop(subject, module, optimiser, 2, pulled)
    result = trained(proximal_mu=0.7, anchor=anchor, optimizer=optimizer)
    np.testing.assert_allclose(result, reference, rtol=1e-3, atol=1e-5)


def test_the_anchor_defaults_to_the_start() -> None:
    start = trainer().parameters()
    default = trained(proximal_mu=1.0)
    assert np.array_equal(default, trained(proximal_mu=1.0, anchor=start))
    far, near = (np.linalg.norm(p - start) for p in (trained(), default))
    assert near < 0.8 * far


@pytest.mark.parametrize(
    ("model", "by_hand"), [(MLP, True), (models.cnn_small, True), (GROUPNORM, False)]
)
def test_training_learns(model: Any, by_hand: bool) -> None:
    shape = (1, 28, 28)
    subject = trainer(model, shape)
    assert isinstance(subject._backend, AutogradBackend) is not (by_hand and has_kernels())
    images, labels = examples(shape=shape)
    before = subject.evaluate(images, labels)
    subject.train(images, labels, rng=rng(), epochs=4, batch_size=16, lr=0.02)
    after = subject.evaluate(images, labels)
    assert after.loss < 0.5 * before.loss
    assert after.accuracy > 0.8


@pytest.mark.parametrize("model", [MLP, TINY_CNN, GROUPNORM])
@pytest.mark.parametrize("settings", [{}, {"optimizer": "adam", "lr": 0.01}])
def test_a_call_is_not_changed_by_what_ran_before(model: Any, settings: Any) -> None:
    shape = (1, 20, 20)
    subject = trainer(model, shape)
    start = subject.parameters()
    images, labels = examples(shape=shape)
    defaults: Any = {"batch_size": 16, "lr": 0.05} | settings

    def run() -> np.ndarray:
        subject.load(start)
        subject.train(images, labels, rng=rng(3), epochs=2, **defaults)
        return subject.parameters()

    first = run()
    # Something else in between: other sizes, another optimiser, inference.
    other: Any = {"optimizer": "adam", "lr": 0.1}
    subject.train(images[:7], labels[:7], rng=rng(4), steps=3, batch_size=5, **other)
    subject.logits(images[:11])
    assert np.array_equal(run(), first)
    assert np.array_equal(trained(model, shape, rng=rng(3), **defaults), first)
    assert not np.array_equal(trained(model, shape, rng=rng(4), **defaults), first)


def test_another_process_gets_the_same_bits() -> None:
    program = (
        "from tests.murmur.learning.training.test_trainer import TINY_CNN, trained; import sys;"
        "sys.stdout.write(trained(TINY_CNN, (1, 20, 20)).tobytes().hex())"
    )
    root = Path(__file__).parents[4]
    other = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert other.stdout == trained(TINY_CNN, (1, 20, 20)).tobytes().hex()


def test_global_generators_are_left_alone() -> None:
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    trained(TINY_CNN, (1, 20, 20))
    trained(GROUPNORM, (1, 20, 20))
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == states


def test_initial_parameters_depend_on_the_generator_only() -> None:
    subject = trainer()
    present = subject.parameters()
    fresh = subject.initial(rng(5))
    assert np.array_equal(subject.parameters(), present)
    subject.load(fresh * 2)
    assert np.array_equal(subject.initial(rng(5)), fresh)
    assert not np.array_equal(subject.initial(rng(6)), fresh)


def test_indices_are_the_same_as_a_copy() -> None:
    images, labels = examples()
    chosen = np.array([3, 77, 20, 20, 5, 41, 8])
    one, other = trainer(), trainer()
    settings: Any = {"epochs": 3, "batch_size": 3, "lr": 0.1}
    one.train(images, labels, rng=rng(), indices=chosen, **settings)
    other.train(images[chosen], labels[chosen], rng=rng(), **settings)
    assert np.array_equal(one.parameters(), other.parameters())


def test_soft_targets_that_are_certain_are_labels() -> None:
    _, labels = examples()
    soft = np.eye(3, dtype=np.float32)[labels]
    images, _ = examples()
    subject = trainer()
    subject.train(images, soft, rng=rng(1), epochs=2, batch_size=16, lr=0.1, soft_targets=True)
    assert np.array_equal(subject.parameters(), trained())


def test_soft_targets_are_met() -> None:
    subject = trainer()
    images = np.ones((4, *SHAPE), np.float32)
    soft = np.tile(np.array([0.2, 0.5, 0.3], np.float32), (4, 1))
    subject.train(images, soft, rng=rng(), steps=300, batch_size=4, lr=0.1, soft_targets=True)
    logits = torch.from_numpy(subject.logits(images[:1]))
    assert torch.softmax(logits, 1)[0].tolist() == pytest.approx([0.2, 0.5, 0.3], abs=1e-3)


def test_epochs_are_steps() -> None:
    # 90 examples in batches of 16: six a pass, the last of ten.
    assert np.array_equal(trained(epochs=2), trained(epochs=None, steps=12))
    assert not np.array_equal(trained(epochs=2), trained(epochs=None, steps=11))
    assert np.array_equal(trained(epochs=0), trainer().parameters())


def test_a_read_only_memory_map_is_used_as_it_is(tmp_path: Path) -> None:
    images, labels = examples()
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    subject = trainer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        subject.train(mapped, labels, rng=rng(1), epochs=2, batch_size=16, lr=0.1)
        logits = subject.logits(mapped)
    assert np.array_equal(subject.parameters(), trained())
    assert np.array_equal(logits, subject.logits(images))
    assert np.array_equal(mapped, images)


@pytest.mark.parametrize("shape", [(1, 20, 20), (3, 20, 21)])
def test_logits_are_those_of_the_module_in_inference(shape: tuple[int, int, int]) -> None:
    subject = trainer(TINY_CNN, shape)
    images, labels = examples(25, shape)
    subject.train(images, labels, rng=rng(), epochs=1, batch_size=8, lr=0.01)
    module = TINY_CNN(shape, 3).eval()
    module.load_state_dict(subject.flat.state_dict())
    expected = module(torch.from_numpy(images)).detach().numpy()
    for batch_size in (512, 10, 1):
        logits = subject.logits(images, batch_size)
        assert logits.dtype == np.float32
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    assert subject.logits(images[:0]).shape == (0, 3)
    with pytest.raises(ValueError, match=r"^batch_size=0: "):
        subject.logits(images, 0)


def test_logits_do_not_depend_on_how_many_threads_share_them() -> None:
    images, _ = examples(150, (1, 20, 20))
    results = []
    for threads in (1, 2, 3):
        subject = Trainer(TINY_CNN, (1, 20, 20), 3, inference_threads=threads)
        subject.load(subject.initial(rng()))
        results.append(subject.logits(images, batch_size=16).tobytes())
    assert len(set(results)) == 1


def test_parameters_are_copies() -> None:
    subject = trainer()
    taken = subject.parameters()
    given = np.zeros_like(taken)
    subject.load(given)
    given += 1
    assert taken.any()
    assert not subject.parameters().any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"images": np.zeros((90, 1, 8, 9), np.float32)}, r"images=\(90, 1, 8, 9\) float32: must"),
        ({"images": np.zeros((90, *SHAPE))}, r"images=\(90, 1, 8, 8\) float64: must be float32"),
        ({"labels": np.zeros(89, int)}, "labels="),
        ({"labels": np.full(90, 3)}, r"labels=3\.\.3: "),
        ({"soft_targets": True}, "labels="),
        ({"indices": np.array([90])}, "indices="),
        ({"anchor": np.zeros(3, np.float32), "proximal_mu": 1.0}, r"anchor=\(3,\): "),
        ({"lr": -1.0}, "lr=-1.0: "),
        ({"batch_size": 0}, "batch_size=0: "),
        ({"steps": 1}, "epochs=1: "),
    ],
)
def test_bad_requests_are_refused_and_change_nothing(settings: Any, message: str) -> None:
    images, labels = examples()
    subject = trainer()
    before = subject.parameters()
    request = {
        "images": images,
        "labels": labels,
        "rng": rng(),
        "epochs": 1,
        "batch_size": 16,
        "lr": 0.1,
    }
    with pytest.raises(ValueError, match=f"^{message}"):
        subject.train(**(request | settings))
    assert np.array_equal(subject.parameters(), before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"input_shape": (8, 8)}, r"input_shape=\(8, 8\): "),
        ({"num_classes": 1}, "num_classes=1: "),
        ({"inference_threads": 0}, "inference_threads=0: "),
        ({"model": models.cnn_16, "input_shape": (1, 3, 3)}, r"input_shape=\(1, 3, 3\): too small"),
    ],
)
def test_bad_construction_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        Trainer(**({"model": MLP, "input_shape": SHAPE, "num_classes": 3} | settings))


def test_statistics_stay_apart_from_parameters() -> None:
    def with_batch_norm(input_shape: Any, num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3))

    subject = trainer(with_batch_norm)
    assert subject.flat.num_buffers == 4
    start, statistics = subject.parameters(), subject.flat.buffers()
    images, labels = examples()
    subject.train(images, labels, rng=rng(), epochs=1, batch_size=16, lr=0.1)
    assert not np.array_equal(subject.flat.buffers(), statistics)
    subject.load(start)
    subject.flat.load_buffers(statistics)
    assert subject.flat.buffers().tolist() == [0, 0, 1, 1]
    assert subject.num_parameters == 20 + 4 + 72 * 3 + 3
