"""DP-SGD's sums by kernels have the bits of those by PyTorch and Opacus, whatever the model."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from murmur.learning.models import Flatten, cnn_groupnorm, cnn_tanh, mlp
from murmur.learning.training import clipped_sums, dpsgd
from murmur.learning.training.clipped_sums import Products
from murmur.learning.training.trainer import Trainer
from murmur.privacy.mechanisms.sampled_gaussian import SampledGaussian
from murmur.privacy.noise import NoiseGenerator
from murmur_kernels import clipping, filters

pytest.importorskip("llvmlite", reason="the extra `fast` is not installed")

CLASSES = 10


class Shared(nn.Module):
    """A layer used twice, whose gradients add up, between two that are used once."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 16)
        self.again = nn.Linear(16, 16)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, x):
        x = torch.tanh(self.first(x.flatten(1)))
        return self.last(torch.tanh(self.again(torch.tanh(self.again(x)))))


class Positions(nn.Module):
    """A layer whose rows are positions of all examples."""

    def __init__(self):
        super().__init__()
        self.only = nn.Linear(64, CLASSES)

    def forward(self, x):
        return self.only(x.reshape(-1, 64)).view(-1, 3, CLASSES).sum(1)


def sequence(*layers):
    return lambda **_: nn.Sequential(*layers)


def frozen(**_):
    layers = [nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 24), nn.Linear(24, CLASSES)]
    layers[0].weight.requires_grad_(False)
    layers[2].bias.requires_grad_(False)
    return nn.Sequential(Flatten(), *layers)


PADDED = [nn.Conv2d(3, 16, (5, 3), (2, 1), (2, 1)), nn.ReLU(), nn.Conv2d(16, 32, 3, dilation=2)]
GROUPS = [nn.Conv2d(4, 16, 3, groups=2), nn.Conv2d(16, 6, 3, padding="same"), nn.Flatten()]
POSITIONS = [nn.Flatten(2), nn.Linear(64, 32), nn.Tanh(), nn.Flatten(), nn.Linear(96, CLASSES)]
CASES = {
    "mlp": (partial(mlp, hidden=[256]), (1, 28, 28)),
    "mlp of odd widths": (partial(mlp, hidden=[13]), (1, 9, 7)),
    "cnn_tanh": (cnn_tanh, (1, 28, 28)),
    "cnn_groupnorm": (cnn_groupnorm, (3, 16, 16)),
    "padded": (sequence(*PADDED, nn.Flatten(), nn.Linear(32 * 6 * 12, CLASSES)), (3, 20, 16)),
    "groups": (sequence(*GROUPS, nn.Linear(6 * 64, CLASSES)), (4, 10, 10)),
    "several positions": (sequence(*POSITIONS), (3, 8, 8)),
    "shared": (lambda **_: Shared(), (1, 8, 8)),
    "frozen": (frozen, (1, 8, 8)),
}


@pytest.fixture
def without(monkeypatch):
    """Makes per-sample gradients of a model as if no kernels were installed."""

    def make(flat):
        with monkeypatch.context() as patched:
            patched.setattr(clipped_sums, "kernels", lambda name: None)
            return dpsgd.PerSampleGradients(flat)

    return make


def trainer_of(name):
    build, shape = CASES[name]
    trainer = Trainer(build, shape, CLASSES)
    trainer.load(trainer.initial(np.random.default_rng(1)))
    return trainer


def data(name, count):
    generator = torch.Generator().manual_seed(count)
    images = torch.rand(count, *CASES[name][1], generator=generator) - 0.25
    return images, torch.eye(CLASSES)[torch.randint(CLASSES, (count,), generator=generator)]


@pytest.mark.parametrize("name", CASES)
def test_sums_have_the_bits_of_opacus(name, without):
    trainer = trainer_of(name)
    ours, theirs = dpsgd.PerSampleGradients(trainer.flat), without(trainer.flat)
    for count in (1, 17, 50):
        images, targets = data(name, count)
        for norm in (0.05, 100.0):
            total = ours.clipped_sum(images, targets, norm)
            assert torch.equal(total, theirs.clipped_sum(images, targets, norm)), (count, norm)
            assert total.any()


@pytest.mark.parametrize("name", ["mlp", "cnn_tanh"])
def test_an_examples_views_have_the_bits_of_opacus(name, without):
    trainer = trainer_of(name)
    images, targets = data(name, 3)
    seen = dpsgd.shifted(images, 5)
    ours, theirs = dpsgd.PerSampleGradients(trainer.flat), without(trainer.flat)
    total = ours.clipped_sum(seen, targets, 0.1, views=5)
    assert torch.equal(total, theirs.clipped_sum(seen, targets, 0.1, views=5))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38, 1e-42])
@pytest.mark.parametrize("name", ["mlp", "cnn_tanh"])
def test_broken_and_vanishing_examples_count_as_by_opacus(name, value, without):
    trainer = trainer_of(name)
    images, targets = data(name, 5)
    images[1, 0, 3, 4] = value
    images[3] = value
    total = dpsgd.PerSampleGradients(trainer.flat).clipped_sum(images, targets, 0.1)
    assert torch.equal(total, without(trainer.flat).clipped_sum(images, targets, 0.1))


def test_an_infinite_input_of_units_that_are_off_breaks_its_example(without):
    """Its products are 0 · ∞, and not 0."""
    trainer = trainer_of("mlp")
    biases = trainer.flat.views(trainer.flat.vector)
    biases["1.weight"].fill_(-0.1)
    biases["1.bias"].fill_(-1)
    images, targets = data("mlp", 2)
    images[1, 0, 0, 0] = np.inf
    alone = without(trainer.flat).clipped_sum(images[:1], targets[:1], 0.1)
    gradients = dpsgd.PerSampleGradients(trainer.flat)
    gradients.load()
    assert torch.equal(gradients.clipped_sum(images, targets, 0.1), alone)


def test_positions_that_are_no_examples_are_refused(without):
    """Rows of a linear layer that are not those of the batch are not clipped one by one."""
    trainer = Trainer(lambda **_: Positions(), (3, 8, 8), CLASSES)
    images = torch.rand(5, 3, 8, 8)
    for make in (dpsgd.PerSampleGradients, without):
        with pytest.raises(RuntimeError):
            make(trainer.flat).clipped_sum(images, torch.eye(CLASSES)[:5], 0.1)


@pytest.mark.parametrize("name", ["mlp", "cnn_tanh"])
def test_training_has_the_bits_of_opacus_in_lots_of_any_size(name, monkeypatch):
    images, targets = data(name, 90)
    labels = targets.argmax(1).numpy()

    def trained():
        trainer = trainer_of(name)
        noise = NoiseGenerator.seeded("lots")
        mechanism = SampledGaussian(0.5, 1.0, dpsgd.SENSITIVITY)
        lots = iter([np.zeros(90, bool), np.arange(90) == 5, np.ones(90, bool)])
        dpsgd.DpSgd(45, 1.0, 0.1).train(
            trainer,
            images.numpy(),
            labels,
            steps=5,
            sample=lambda count: next(lots, mechanism.sample(count, noise)),
            perturb=lambda total: mechanism.perturb(total, noise),
        )
        return trainer.parameters()

    ours = trained()
    monkeypatch.setattr(clipped_sums, "kernels", lambda name: None)
    assert np.array_equal(ours, trained())


# In which order libraries add up is known for AVX2; elsewhere it is tried, and may not be found.
KNOWN = torch.backends.cpu.get_cpu_capability() == "AVX2"


def kinds(gradients, monkeypatch, name):
    """Which weights' gradients were unmade, and which convolutions' Opacus made."""
    from opacus.grad_sample import conv

    made = []
    unfold = conv.unfold2d
    monkeypatch.setattr(
        conv, "unfold2d", lambda *args, **how: made.append(1) or unfold(*args, **how)
    )
    images, targets = data(name, 16)
    found = gradients._found(images, targets, torch.ones(16, 1))
    return [part for part, value in found.items() if isinstance(value, Products)], len(made)


@pytest.mark.parametrize(
    ("name", "unmade", "by_opacus"),
    [
        ("mlp", ["1.weight", "3.weight"], 0),
        ("cnn_tanh", ["7.weight", "9.weight"], 0),
        ("shared", ["first.weight", "last.weight"], 0),
        ("groups", ["3.weight"], 2),
        ("several positions", ["4.weight"], 0),
    ],
)
def test_kernels_are_used_where_they_fit(name, unmade, by_opacus, monkeypatch):
    gradients = dpsgd.PerSampleGradients(trainer_of(name).flat)
    found = kinds(gradients, monkeypatch, name)
    assert found == (unmade, by_opacus) or not KNOWN


def test_without_a_known_order_of_sums_pytorch_and_opacus_do_the_work(monkeypatch):
    trainer = trainer_of("cnn_tanh")
    clipping.clipping.cache_clear()
    monkeypatch.setattr(filters, "_UNIT", 112)
    found = kinds(dpsgd.PerSampleGradients(trainer.flat), monkeypatch, "cnn_tanh")
    assert found[1] == 1 or not KNOWN  # the second convolution's 64 places are one block anyway
    monkeypatch.setattr(clipping, "_LANES", (2,))
    clipping.clipping.cache_clear()
    assert clipping.clipping(4096) is None
    assert kinds(dpsgd.PerSampleGradients(trainer.flat), monkeypatch, "cnn_tanh") == ([], 2)
    clipping.clipping.cache_clear()
