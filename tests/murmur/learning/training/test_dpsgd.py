"""DP-SGD: what one example can add, exactness of the sum, agreement with plain gradients."""

import numpy as np
import pytest
import torch
from torch import nn

from murmur.learning.data.datasets import Examples
from murmur.learning.models import cnn_groupnorm, cnn_privatekt, cnn_tanh, mlp
from murmur.learning.training.dpsgd import SENSITIVITY, DpSgd, PerSampleGradients, shifted
from murmur.learning.training.trainer import Trainer

SHAPE, CLASSES = (1, 16, 16), 3


def tanh(input_shape, num_classes):
    return cnn_tanh(input_shape, num_classes, channels=[4, 6], hidden=[8])


def dense(input_shape, num_classes):
    return mlp(input_shape, num_classes, hidden=[8])


def groupnorm(input_shape, num_classes):
    return cnn_groupnorm(input_shape, num_classes, channels=[4, 4, 4, 4], groups=2, hidden=[6])


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, 90)
    images = rng.standard_normal((90, *SHAPE)).astype(np.float32)
    images[np.arange(90), 0, labels * 3] += 2
    return Examples(images, labels)


def trainer_of(model, shape=SHAPE):
    trainer = Trainer(model, shape, CLASSES)
    trainer.load(trainer.initial(np.random.default_rng(1)))
    return trainer


def everybody(count):
    return np.ones(count, bool)


def unchanged(total):
    return total


def one_hot(labels):
    return torch.eye(CLASSES)[torch.from_numpy(labels)]


def plain_gradient(trainer, images, label):
    """By plain autograd, in the flat order, of one example."""
    flat = trainer.flat
    module = flat.module
    logits = module(torch.from_numpy(images[None]))
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([label]))
    parameters = dict(module.named_parameters())
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    return flat.flatten(dict(zip(parameters, gradients, strict=True)))


@pytest.mark.parametrize("model", [tanh, dense, groupnorm])
@pytest.mark.parametrize("norm", [0.05, 100.0], ids=["clipped", "unclipped"])
def test_one_example_gives_its_clipped_gradient_on_the_grid(model, norm, data):
    trainer = trainer_of(model)
    expected = plain_gradient(trainer, data.images[7], data.labels[7])
    length = np.linalg.norm(expected)
    assert norm < length or norm == 100.0
    expected = expected / max(1, length / norm)
    clipped_sum = PerSampleGradients(trainer.flat).clipped_sum
    total = clipped_sum(torch.from_numpy(data.images[7:8]), one_hot(data.labels[7:8]), norm)
    steps = total.numpy()
    assert np.array_equal(steps, np.rint(steps))
    # Rounded towards zero, by less than a step, after shrinking by a quarter per mille.
    np.testing.assert_allclose(steps * norm / SENSITIVITY, expected, rtol=3e-4, atol=norm / 6e4)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4, 1e12])
def test_no_example_exceeds_the_sensitivity(scale, data):
    trainer = trainer_of(dense)
    clipped_sum = PerSampleGradients(trainer.flat).clipped_sum
    for row in range(20):
        images = torch.from_numpy(data.images[row : row + 1] * np.float32(scale))
        total = clipped_sum(images, one_hot(data.labels[row : row + 1]), 0.01)
        squares = sum(int(step) ** 2 for step in total.numpy())
        assert squares <= SENSITIVITY**2
        if squares and scale >= 1:
            assert squares > 0.99 * SENSITIVITY**2


@pytest.mark.parametrize("surplus", range(15, 100, 5))
def test_no_example_exceeds_it_where_the_squares_of_its_gradient_vanish(surplus, data):
    trainer = trainer_of(lambda **_: nn.Sequential(nn.Flatten(), nn.Linear(256, 3)))
    biases = np.zeros(trainer.num_parameters, np.float32)
    biases[-3] = surplus  # so sure of class 0 that the others' gradients are e^-surplus
    trainer.load(biases)
    gradients = PerSampleGradients(trainer.flat)
    gradients.load()
    least = DpSgd(5, 1e-9, 0.1).clipping_norm
    images = torch.from_numpy(data.images[:1])
    total = gradients.clipped_sum(images, one_hot(np.array([0])), least)
    assert sum(int(step) ** 2 for step in total.numpy()) <= SENSITIVITY**2


@pytest.mark.parametrize("model", [tanh, dense])
def test_a_sum_is_the_sum_of_its_examples_up_to_last_bits(model, data):
    trainer = trainer_of(model)
    images, targets = torch.from_numpy(data.images[:60]), one_hot(data.labels[:60])
    clipped_sum = PerSampleGradients(trainer.flat).clipped_sum
    together = clipped_sum(images, targets, 0.1).numpy()
    alone = sum(clipped_sum(images[i : i + 1], targets[i : i + 1], 0.1).numpy() for i in range(60))
    # Kernels may differ in a gradient's last bits between batch sizes: a step for each example.
    assert np.abs(together - alone).max() <= len(images)
    assert np.linalg.norm(together - alone) < 1e-4 * np.linalg.norm(alone)


def test_an_example_with_a_broken_gradient_counts_as_none(data):
    trainer = trainer_of(dense)
    images = data.images[:3].copy()
    images[1, 0, 0, 0] = np.nan
    targets = one_hot(data.labels[:3])
    clipped_sum = PerSampleGradients(trainer.flat).clipped_sum
    broken = clipped_sum(torch.from_numpy(images), targets, 1.0)
    rest = clipped_sum(torch.from_numpy(images[[0, 2]]), targets[[0, 2]], 1.0)
    assert (broken - rest).abs().max() <= 2  # a step for each of the two, by last bits


def test_without_noise_or_clipping_it_is_gradient_descent(data):
    trainer = trainer_of(tanh)
    start = trainer.parameters()
    settings = DpSgd(lot_size=90, clipping_norm=50.0, learning_rate=0.3)
    settings.train(trainer, data.images, data.labels, steps=3, sample=everybody, perturb=unchanged)
    ours = trainer.parameters()
    trainer.load(start)
    trainer.train(
        data.images, data.labels, rng=np.random.default_rng(0), batch_size=90, lr=0.3, steps=3
    )
    moved = np.linalg.norm(trainer.parameters() - start)
    assert np.linalg.norm(ours - trainer.parameters()) < 0.02 * moved


def test_lots_are_normalised_by_their_expected_size(data):
    """An empty lot still takes a step, of pure noise, and lots are not told by their size."""
    trainer = trainer_of(dense)
    start = trainer.parameters()
    settings = DpSgd(lot_size=9, clipping_norm=2.0, learning_rate=0.5)
    settings.train(
        trainer,
        data.images,
        data.labels,
        steps=1,
        sample=lambda count: np.zeros(count, bool),
        perturb=lambda total: total + SENSITIVITY,
    )
    np.testing.assert_allclose(start - trainer.parameters(), 0.5 * 2.0 / 9, rtol=1e-4)


def test_it_learns_from_its_rows_only_with_noise_and_sampling(data):
    trainer = trainer_of(dense)
    rows = np.arange(10, 90)
    rng = np.random.default_rng(5)
    asked = []

    def sample(count):
        asked.append(count)
        return rng.random(count) < 0.25

    settings = DpSgd(lot_size=20, clipping_norm=1.0, learning_rate=0.5)
    poisoned = data.images.copy()
    poisoned[:10] = np.nan
    settings.train(
        trainer,
        poisoned,
        data.labels,
        indices=rows,
        steps=60,
        sample=sample,
        perturb=lambda total: total + rng.normal(0, SENSITIVITY, total.shape).astype(np.int64),
    )
    assert asked == [80] * 60
    assert trainer.evaluate(data.images[rows], data.labels[rows]).accuracy > 0.8


def test_soft_targets_train_towards_distributions(data):
    soft = np.full((90, CLASSES), 0.0, np.float32)
    soft[:, 1] = 1
    trainer = trainer_of(dense)
    DpSgd(90, 5.0, 0.5).train(
        trainer, data.images, soft, steps=40, sample=everybody, perturb=unchanged, soft_targets=True
    )
    assert (trainer.logits(data.images).argmax(1) == 1).mean() > 0.95


def test_the_model_is_left_as_it_was(data):
    trainer = trainer_of(tanh)
    module = trainer.flat.module
    before = set(vars(module))
    DpSgd(30, 1.0, 0.1).train(
        trainer, data.images, data.labels, steps=1, sample=everybody, perturb=unchanged
    )
    assert set(vars(module)) == before
    assert not any(layer._forward_hooks or layer._backward_hooks for layer in module.modules())
    assert not any(hasattr(p, "grad_sample") or p.grad is not None for p in module.parameters())
    trainer.train(
        data.images, data.labels, rng=np.random.default_rng(0), batch_size=30, lr=0.1, epochs=1
    )


def test_dropout_is_off(data):
    trainer = Trainer(cnn_privatekt, (1, 28, 28), CLASSES)
    images = np.zeros((4, 1, 28, 28), np.float32)
    DpSgd(4, 1.0, 0.1).train(
        trainer, images, np.zeros(4, np.int64), steps=1, sample=everybody, perturb=unchanged
    )


def test_batch_normalisation_is_refused(data):
    def normalised(input_shape, num_classes):
        return torch.nn.Sequential(
            torch.nn.Conv2d(1, 2, 3),
            torch.nn.BatchNorm2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(392, num_classes),
        )

    with pytest.raises(ValueError, match=r"model=.*batch normalisation"):
        DpSgd(30, 1.0, 0.1).train(
            trainer_of(normalised),
            data.images,
            data.labels,
            steps=1,
            sample=everybody,
            perturb=unchanged,
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1.0, 0.1), "^lot_size=0: "),
        ((5, 0.0, 0.1), r"^clipping_norm=0\.0: "),
        ((5, 1e-10, 0.1), "^clipping_norm=1e-10: "),
        ((5, 1.0, float("nan")), "^learning_rate=nan: "),
    ],
)
def test_settings_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        DpSgd(*arguments)


def test_an_examples_gradient_is_the_mean_over_its_views_and_clipped_once(data):
    trainer = trainer_of(groupnorm)
    gradients = PerSampleGradients(trainer.flat)
    images = torch.from_numpy(data.images[:3])
    seen = shifted(images, 5)
    assert torch.equal(seen[::5], images)
    assert torch.equal(seen[1, :, 1:], images[0, :, :-1])
    targets = one_hot(data.labels[:3])
    together = gradients.clipped_sum(seen, targets, 1e3, views=5)
    alone = sum(gradients.clipped_sum(seen[i::5], targets, 1e3) for i in range(5)) / 5
    # A step for each of three examples on either side, and the mean's own rounding.
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=6)
    clipped = gradients.clipped_sum(seen[:5], targets[:1], 1e-4, views=5)
    assert 0.99 * SENSITIVITY < clipped.norm() <= SENSITIVITY


def test_weights_that_are_averaged_lie_between_the_steps(data):
    def after(steps, average):
        trainer = trainer_of(dense)
        settings = DpSgd(90, 1.0, 0.5, average=average)
        settings.train(
            trainer, data.images, data.labels, steps=steps, sample=everybody, perturb=unchanged
        )
        return trainer.parameters()

    start, first, second = after(0, 0.0), after(1, 0.0), after(2, 0.0)
    # The decays are 1/10 and 2/11 at first.
    expected = (2 / 11) * (0.1 * start + 0.9 * first) + (9 / 11) * second
    np.testing.assert_allclose(after(2, 0.9), expected, atol=1e-6)


@pytest.mark.parametrize("words", [{"views": 0}, {"views": 26}, {"average": 1.0}])
def test_views_and_averages_out_of_range_are_refused(words):
    with pytest.raises(ValueError, match=next(iter(words))):
        DpSgd(10, 1.0, 0.5, **words)
