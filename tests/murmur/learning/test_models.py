from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hydra.utils import instantiate
from torch import nn

from murmur.learning import models
from murmur.learning.models import initialise

MNIST = (1, 28, 28)
CONF = Path(__file__).parents[3] / "conf" / "model"
FACTORIES = ("mlp", "cnn_small", "cnn_16", "cnn_tanh", "cnn_privatekt", "cnn_groupnorm")


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (models.mlp((1, 8, 8), 10), 64 * 64 + 64 + 64 * 10 + 10),
        (models.mlp(MNIST, 10, hidden=[256]), 203_530),
        (models.mlp(MNIST, 10, hidden=[]), 7_850),
        (models.cnn_16(MNIST, 10), 10_330),
        (models.cnn_privatekt(MNIST, 10), 1_682_890),
    ],
)
def test_parameter_counts(module: nn.Module, expected: int) -> None:
    assert count(module) == expected


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 29, 31)])
def test_every_model_takes_any_image_that_is_large_enough(
    name: str, shape: tuple[int, int, int]
) -> None:
    module = getattr(models, name)(shape, 7).eval()
    assert module(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("side", range(16, 22))
@pytest.mark.parametrize("downsample", ["stride", "pool"])
def test_cnn_small_fits_every_side(side: int, downsample: str) -> None:
    module = models.cnn_small((1, side, side + 1), 4, downsample=downsample)
    assert module(torch.zeros(1, 1, side, side + 1)).shape == (1, 4)


@pytest.mark.parametrize("name", FACTORIES[1:])
def test_too_small_images_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^input_shape=\(1, 3, 3\): too small for model {name}"):
        getattr(models, name)((1, 3, 3), 10)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: models.mlp(MNIST, 10, hidden=[0]), "hidden="),
        (lambda: models.mlp(MNIST, 10, hidden=[2.5]), "hidden="),
        (lambda: models.mlp(MNIST, 10, dropout=1.0), "dropout="),
        (lambda: models.mlp(MNIST, 10, init="ones"), "init="),
        (lambda: models.cnn_small(MNIST, 10, channels=[8]), "channels="),
        (lambda: models.cnn_small(MNIST, 10, downsample="mean"), "downsample="),
        (lambda: models.cnn_groupnorm(MNIST, 10, channels=[8, 8, 8, 9]), "channels="),
    ],
)
def test_bad_settings_are_refused(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        build()


def test_the_privatekt_model_has_no_activation_after_convolutions_unless_asked() -> None:
    def kinds(**settings: bool) -> list[str]:
        return [type(layer).__name__ for layer in models.cnn_privatekt(MNIST, 10, **settings)]

    block = ["Conv2d", "HalvingPool", "Dropout"]
    assert kinds()[:7] == [*block, *block, "Flatten"]
    assert kinds(conv_activation=True)[:4] == ["Conv2d", "HalvingPool", "ReLU", "Dropout"]
    assert kinds()[7:] == ["Linear", "ReLU", "Dropout"] * 3 + ["Linear"]


def test_no_model_normalises_over_a_batch() -> None:
    for name in FACTORIES:
        module = getattr(models, name)(MNIST, 10)
        assert not list(module.buffers())


def test_pooling_before_relu_is_the_same_function() -> None:
    module = models.cnn_16(MNIST, 10)
    initialise(module, np.random.default_rng(0))
    layers = list(module)
    layers[1:3] = layers[2], layers[1]
    swapped = nn.Sequential(*layers)
    x = torch.linspace(-1, 1, 3 * 784).view(3, 1, 28, 28)
    assert torch.equal(module(x), swapped(x))


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_config_names_a_factory_and_builds(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# ")
    settings = yaml.safe_load(text)
    assert settings["_partial_"] is True
    settings.pop("server_may_set", None)
    if settings.get("vocabulary") == "auto":  # which the data set says
        settings["vocabulary"] = 100
    shape = (1, 1, 16) if path.stem.startswith("text_") else MNIST
    assert count(instantiate(settings)(input_shape=shape, num_classes=10)) > 0


def test_depth_is_the_number_of_a_transformers_layers() -> None:
    def weights(depth: int) -> int:
        text = models.text_transformer((1, 1, 6), 2, vocabulary=9, width=8, depth=depth)
        return sum(values.numel() for values in text.parameters())

    assert weights(3) - weights(2) == weights(2) - weights(1) > 0
