"""Training in bfloat16: what is rounded, what is not, and where they are refused."""

from functools import partial

import numpy as np
import pytest
from torch import nn

from murmur.learning import models
from murmur.learning.models import Flatten, Network
from murmur.learning.training.trainer import Trainer
from murmur_kernels.half import HalfConvolutionStage, HalfLinearStage

SHAPE = (1, 20, 20)
CASES = {
    "cnn_16": models.cnn_16,
    "cnn_tanh": models.cnn_tanh,
    "odd sizes, dropout": partial(models.cnn_small, downsample="pool", hidden=[9], dropout=0.2),
    "no pooling": lambda input_shape, num_classes: Network(
        [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), Flatten(), nn.Linear(1024, num_classes)]
    ),
    "large linear layer": partial(models.mlp, hidden=[512, 512]),
}


@pytest.fixture(autouse=True)
def _has_bfloat16(monkeypatch):
    """Processors without it compute the same, but slower."""
    monkeypatch.setattr("murmur.learning.training.backends.has_bfloat16", lambda: True)


def moved(model, precision, lr=0.1):
    """By how much a few steps move the parameters."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(24, *SHAPE)).astype(np.float32)
    trainer = Trainer(model, SHAPE, 10, precision=precision)
    start = trainer.initial(np.random.default_rng(1))
    trainer.load(start)
    trainer.train(
        images,
        rng.integers(0, 10, 24),
        rng=np.random.default_rng(2),
        batch_size=8,
        lr=lr,
        epochs=1,
    )
    return trainer.parameters() - start


@pytest.mark.parametrize("name", CASES)
def test_a_step_in_bfloat16_is_that_in_float32_but_for_its_rounding(name):
    whole, half = moved(CASES[name], "fp32"), moved(CASES[name], "bf16")
    assert not np.array_equal(whole, half)
    assert np.linalg.norm(half - whole) < 0.05 * np.linalg.norm(whole)


def test_updates_smaller_than_bfloat16_can_hold_are_kept():
    """A parameter of 0.1 has steps of 2**-12 in bfloat16; float32 parameters move by less."""
    change = moved(models.cnn_16, "bf16", lr=1e-6)
    assert np.count_nonzero(change) > len(change) / 2


def test_training_follows_from_the_seed_bit_for_bit():
    assert np.array_equal(moved(models.cnn_16, "bf16"), moved(models.cnn_16, "bf16"))


def test_the_first_convolution_stays_in_float32():
    trainer = Trainer(models.cnn_16, SHAPE, 10, precision="bf16")
    plan = trainer._backend._plan(4, True)
    half = [isinstance(forward.__self__, HalfConvolutionStage) for forward in plan._forward]
    assert half.index(True) > 0 and half.count(True) == 1


def test_large_linear_layers_after_the_first_compute_in_bfloat16():
    trainer = Trainer(partial(models.mlp, hidden=[1024, 512, 64]), SHAPE, 10, precision="bf16")
    plan = trainer._backend._plan(4, True)
    linear = [forward.__self__ for forward in plan._forward[::2]]
    half = [isinstance(stage, HalfLinearStage) for stage in linear]
    assert half == [False, True, False, False]


@pytest.mark.parametrize("model", [models.mlp, models.cnn_groupnorm, models.cnn_small])
def test_models_without_such_a_layer_are_refused(model):
    with pytest.raises(ValueError, match=r"^precision=bf16: is for plain sequences"):
        Trainer(model, SHAPE, 10, precision="bf16")
    assert np.array_equal(moved(model, "auto"), moved(model, "fp32"))


def test_processors_without_bfloat16_are_named(monkeypatch):
    monkeypatch.setattr("murmur.learning.training.backends.has_bfloat16", lambda: False)
    with pytest.raises(ValueError, match=r"^precision=bf16: this processor does not"):
        Trainer(models.cnn_16, SHAPE, 10, precision="bf16")
    assert np.array_equal(moved(models.cnn_16, "auto"), moved(models.cnn_16, "fp32"))


@pytest.mark.parametrize("name", CASES)
def test_inference_is_in_bfloat16_too(name):
    images = np.random.default_rng(0).normal(size=(5, *SHAPE)).astype(np.float32)
    whole, half = (
        Trainer(CASES[name], SHAPE, 10, precision=precision) for precision in ("fp32", "bf16")
    )
    outputs = []
    for trainer in (whole, half):
        trainer.load(whole.initial(np.random.default_rng(1)))
        outputs.append(trainer.logits(images))
    assert not np.array_equal(*outputs)
    assert np.linalg.norm(outputs[0] - outputs[1]) < 0.02 * np.linalg.norm(outputs[0])
