import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from murmur.learning.models import cnn_groupnorm, initialise
from murmur.learning.training.parameters import FlatModel


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize(
    ("layer", "scheme", "bound"),
    [
        (nn.Linear(100, 60), "torch", 1 / math.sqrt(100)),
        (nn.Conv2d(4, 60, 5), "torch", 1 / math.sqrt(100)),
        (nn.Linear(100, 60), "glorot", math.sqrt(6 / 160)),
        (nn.Conv2d(4, 60, 5), "glorot", math.sqrt(6 / (100 + 1500))),
    ],
)
def test_weights_are_uniform_within_the_bound(layer: nn.Module, scheme: str, bound: float) -> None:
    initialise(layer, rng(), scheme)
    weights = layer.weight.detach().numpy().ravel()
    assert abs(weights).max() <= bound
    assert stats.kstest(weights, stats.uniform(-bound, 2 * bound).cdf).pvalue > 0.001


def test_the_torch_scheme_has_pytorchs_own_bounds() -> None:
    layer = nn.Conv2d(3, 500, 3)
    theirs = layer.weight.abs().max().item(), layer.bias.abs().max().item()
    initialise(layer, rng())
    ours = layer.weight.abs().max().item(), layer.bias.abs().max().item()
    assert np.allclose(theirs, ours, rtol=0.02)


def test_glorot_starts_biases_at_zero() -> None:
    layer = nn.Linear(5, 5)
    initialise(layer, rng(), "glorot")
    assert not layer.bias.any()


def test_the_values_do_not_depend_on_the_layout() -> None:
    plain, flat = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3)
    FlatModel(flat)
    for layer in (plain, flat):
        initialise(layer, rng())
    assert torch.equal(plain.weight, flat.weight)


def test_normalisation_starts_as_the_identity() -> None:
    module = cnn_groupnorm((3, 32, 32), 10)
    for parameter in module.parameters():
        parameter.data.fill_(9)
    initialise(module, rng())
    norm = module[1]
    assert norm.weight.eq(1).all()
    assert norm.bias.eq(0).all()


def test_a_module_may_bring_its_own_rule() -> None:
    class OwnerSettings(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(3))

    class Ruled(OwnerSettings):
        def initialise(self, rng: np.random.Generator) -> None:
            self.w.fill_(rng.random())

    module = Ruled()
    initialise(nn.Sequential(module), rng())
    assert module.w.eq(torch.tensor(rng().random())).all()
    with pytest.raises(ValueError, match=r"^model=OwnerSettings: has parameters and no known"):
        initialise(OwnerSettings(), rng())


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^init='he': must be one of torch, glorot"):
        initialise(nn.Linear(1, 1), rng(), "he")
