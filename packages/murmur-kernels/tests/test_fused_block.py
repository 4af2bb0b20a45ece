"""The compiled blocks against autograd, for every geometry that conf/model can ask for."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from murmur.learning import models
from murmur.learning.models import Flatten, HalvingPool, Network, initialise
from murmur.learning.training.backends import AutogradBackend
from murmur.learning.training.parameters import FlatModel
from murmur.learning.training.trainer import Trainer
from murmur_kernels import fused, pooled
from murmur_kernels.fused import FusedBlock
from murmur_kernels.sequences import ManualBackend
from tests.backend_gradients import batch, gradient

pytest.importorskip("llvmlite", reason="the extra `fast` is not installed")

GRAY, COLOUR = (1, 28, 28), (3, 29, 31)


def block(layers, features):
    return lambda input_shape, num_classes: Network([*layers, Flatten(), nn.Linear(features, 10)])


CASES = {
    "cnn_16": (models.cnn_16, GRAY),
    "cnn_16, odd and coloured": (models.cnn_16, COLOUR),
    "cnn_16, 8 channels": (partial(models.cnn_16, channels=[8, 16]), GRAY),
    "cnn_16, 24 channels": (partial(models.cnn_16, channels=[24, 8]), (1, 9, 12)),
    "cnn_16, 64 channels": (partial(models.cnn_16, channels=[64, 8]), (3, 8, 8)),
    "cnn_small": (partial(models.cnn_small, downsample="pool", dropout=0.2, hidden=[9]), GRAY),
    "cnn_small, coloured": (partial(models.cnn_small, downsample="pool"), (3, 16, 18)),
    "cnn_tanh": (models.cnn_tanh, GRAY),
    "cnn_privatekt": (models.cnn_privatekt, (1, 16, 16)),
    "cnn_privatekt, ReLU": (partial(models.cnn_privatekt, conv_activation=True), (1, 16, 16)),
    "one block, flattened": (block([nn.Conv2d(1, 8, 3), HalvingPool(), nn.ReLU()], 1352), GRAY),
    "three blocks": (
        block(
            [
                *(nn.Conv2d(1, 8, 3, padding=1), HalvingPool()),
                *(nn.Conv2d(8, 16, 3, padding=1), HalvingPool(), nn.ReLU()),
                *(nn.Conv2d(16, 8, (2, 4), padding=(0, 2), bias=False), HalvingPool()),
            ],
            96,
        ),
        GRAY,
    ),
    "without bias": (block([nn.Conv2d(1, 8, 3, bias=False), HalvingPool()], 1352), GRAY),
    "oblong": (block([nn.Conv2d(2, 8, (3, 5), padding=(0, 2)), HalvingPool()], 240), (2, 14, 10)),
}


@pytest.mark.parametrize("name", CASES)
def test_inference_is_that_of_the_layers(name):
    build, shape = CASES[name]
    plain, one, two = (
        Trainer(build, shape, 10, fused=fused, inference_threads=threads)
        for fused, threads in ((False, 1), (True, 1), (True, 2))
    )
    images = np.random.default_rng(1).normal(size=(13, *shape)).astype(np.float32)
    # Twice: nothing of the first parameters may be left.
    for seed in (0, 1):
        for trainer in (plain, one, two):
            trainer.load(plain.initial(np.random.default_rng(seed)))
        ours = one.logits(images, batch_size=4)
        np.testing.assert_allclose(ours, plain.logits(images, 4), rtol=1e-4, atol=1e-5)
        assert np.array_equal(ours, two.logits(images, batch_size=4))


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_autograd(name):
    build, shape = CASES[name]
    flats = []
    for _ in range(2):
        module = build(input_shape=shape, num_classes=10)
        initialise(module, np.random.default_rng(0))
        flats.append(FlatModel(module))
    compiled = ManualBackend(flats[0], shape, fused=True)
    autograd = AutogradBackend(flats[1], shape)
    blocks = [type(layer) is FusedBlock for _, layer, _ in compiled._layers]
    halved = [isinstance(layer, nn.MaxPool2d) for layer in flats[0].module.children()]
    assert sum(blocks) == sum(halved), "each convolution with its pooling is a block"
    # The last size again: buffers are reused.
    for size in (5, 1, 5):
        ours = gradient(compiled, flats[0], *batch(shape, size))
        theirs = gradient(autograd, flats[1], *batch(shape, size))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(1, 12, 3), HalvingPool(), nn.ReLU()],  # no multiple of eight channels
        [nn.Conv2d(1, 8, 7), HalvingPool()],
        [nn.Conv2d(4, 8, 5), HalvingPool()],
        [nn.Conv2d(1, 8, 3, stride=2), nn.ReLU()],
        [nn.Conv2d(1, 8, 3, dilation=2), HalvingPool()],
        [nn.Conv2d(1, 8, 3), nn.MaxPool2d(3)],
        [nn.Conv2d(1, 8, 3), nn.ReLU(), HalvingPool()],
        [nn.Linear(4, 4), nn.ReLU()],
    ],
)
def test_other_blocks_are_left_to_their_stages(layers):
    assert FusedBlock.beginning([*layers, Flatten()], (28, 28, 1)) is None


def test_a_later_block_takes_any_kernel_and_vectors_of_channels():
    def taken(*convolution):
        layers = [nn.Conv2d(*convolution), HalvingPool(), Flatten()]
        return FusedBlock.beginning(layers, (28, 28, convolution[0]), later=True) is not None

    assert taken(8, 8, 7) and taken(64, 24, 5)
    assert not taken(4, 8, 5) and not taken(8, 12, 5)


def test_a_share_of_the_batch_has_the_bits_that_it_has_alone():
    flat = FlatModel(models.cnn_16(GRAY, 10))
    stage = ManualBackend(flat, GRAY, fused=True)
    images = torch.from_numpy(batch(GRAY, 6)[0]).permute(0, 2, 3, 1)
    with stage.training(np.random.default_rng(0)):
        whole, alone = [stage._plan(count, False)._forward[0] for count in (6, 1)]
        assert torch.equal(whole(images)[3], alone(images[3:4])[0])


def test_training_follows_from_the_seed_bit_for_bit():
    rng = np.random.default_rng(0)
    images = rng.normal(size=(40, *GRAY)).astype(np.float32)
    labels = rng.integers(0, 10, 40)
    results = []
    for _ in range(2):
        trainer = Trainer(models.cnn_16, GRAY, 10, fused=True)
        trainer.load(trainer.initial(np.random.default_rng(1)))
        trainer.train(images, labels, rng=np.random.default_rng(2), batch_size=16, lr=0.1, epochs=2)
        results.append(trainer.parameters())
    assert np.array_equal(*results)


@pytest.fixture
def no_avx512(monkeypatch):
    """Code for a processor with AVX2 and no more; what the compiler wrote, in assembly."""
    from llvmlite import binding

    features, written, compile = binding.get_host_cpu_features(), [], binding.create_mcjit_compiler
    if not features.get("avx2"):
        pytest.skip("this processor has no AVX2")
    narrow = {name: has and not name.startswith("avx512") for name, has in features.items()}

    def noted(module, machine):
        written.append(machine.emit_assembly(module))
        return compile(module, machine)

    monkeypatch.setattr(binding, "get_host_cpu_name", lambda: "haswell")
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: type(features)(narrow))
    monkeypatch.setattr(binding, "create_mcjit_compiler", noted)
    for kernels in (fused, pooled):
        kernels.compiled.cache_clear()
    yield written
    for kernels in (fused, pooled):
        kernels.compiled.cache_clear()


@pytest.mark.parametrize("name", ["cnn_16", "cnn_16, odd and coloured", "cnn_tanh"])
def test_avx2_has_the_bits_of_avx512(name, request):
    build, shape = CASES[name]
    results = []
    for narrow in (False, True):
        written = request.getfixturevalue("no_avx512") if narrow else []
        module = build(input_shape=shape, num_classes=10)
        initialise(module, np.random.default_rng(0))
        flat = FlatModel(module)
        results.append(gradient(ManualBackend(flat, shape, fused=True), flat, *batch(shape, 5)))
    assert len(written) == 2, "the first block, and the second"
    assert all("ymm" in code and "zmm" not in code for code in written)
    assert torch.equal(*results)


@pytest.mark.parametrize("name", ["cnn_16", "cnn_privatekt"])
def test_a_later_block_has_the_same_bits_in_wider_vectors(name, monkeypatch):
    build, shape = CASES[name]
    results = []
    for wide in (False, True):
        monkeypatch.setattr(pooled.machine, "has_avx512", lambda wide=wide: wide)
        pooled.compiled.cache_clear()
        module = build(input_shape=shape, num_classes=10)
        initialise(module, np.random.default_rng(0))
        flat = FlatModel(module)
        results.append(gradient(ManualBackend(flat, shape, fused=True), flat, *batch(shape, 5)))
    pooled.compiled.cache_clear()
    assert torch.equal(*results)


def test_what_has_no_gradient_is_left_out_and_nothing_else():
    build, shape = CASES["cnn_privatekt, ReLU"]
    module = build(input_shape=shape, num_classes=10)
    stage = next(
        one.__self__
        for one in ManualBackend(FlatModel(module), shape, fused=True)._plan(3, False)._backward
        if isinstance(one.__self__, pooled.PooledStage)
    )
    y = stage.forward(torch.zeros(3, *stage._dx.shape[1:]))
    assert not stage.backward(torch.zeros_like(y), 1.0, 0.0).any()
    stage._bias.fill_(1.0)  # so that ReLU lets everything through
    y = stage.forward(torch.zeros(3, *stage._dx.shape[1:]))
    dy = torch.zeros_like(y)
    dy[1, 0, 0, 5] = torch.nan  # is not taken for 0
    moved = stage.backward(dy, 1.0, 0.0)
    assert moved[1].isnan().any() and not moved[0].any() and not moved[2].any()
