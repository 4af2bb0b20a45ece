import numpy as np
import pytest
import torch
from torch import nn

from murmur.learning.models import Dropout, Flatten, HalvingPool


def test_dropout_drops_at_its_rate_and_keeps_the_mean() -> None:
    layer = Dropout(0.2)
    layer.bits = np.random.SFC64(0)
    n = 200_000
    y = layer(torch.ones(n))
    dropped = int((y == 0).sum())
    # Five standard deviations.
    assert abs(dropped - 0.2 * n) < 5 * np.sqrt(0.2 * 0.8 * n)
    kept = y[y > 0]
    assert kept.unique().numel() == 1
    # scale · P(kept) = 1 for the probability that 16 bits can express.
    assert float(kept[0]) == pytest.approx(2**16 / round(0.8 * 2**16), rel=1e-7)


def test_dropout_masks_are_independent_across_units_and_calls() -> None:
    layer = Dropout(0.5)
    layer.bits = np.random.SFC64(1)
    draws = (torch.stack([layer(torch.ones(64)) for _ in range(4000)]) > 0).float()
    correlation = torch.corrcoef(draws.t()) - torch.eye(64)
    assert correlation.abs().max() < 6 / np.sqrt(4000)
    lagged = (draws[1:] - 0.5) * (draws[:-1] - 0.5) * 4
    assert lagged.mean(dim=0).abs().max() < 6 / np.sqrt(4000)


def test_dropout_is_the_identity_in_inference_and_at_zero() -> None:
    x = torch.ones(10)
    assert Dropout(0.9).eval()(x) is x
    assert Dropout(0.0).train()(x) is x


def test_dropout_is_a_function_of_its_generator() -> None:
    layer = Dropout(0.3)
    results = []
    for _ in range(2):
        layer.bits = np.random.SFC64(5)
        results.append(layer(torch.ones(3, 5, 7, 2)))
    assert torch.equal(*results)


def test_dropout_without_a_generator_or_with_a_bad_rate_is_refused() -> None:
    with pytest.raises(RuntimeError, match="needs a generator"):
        Dropout(0.5)(torch.ones(3))
    for p in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match=r"^dropout="):
            Dropout(p)


def test_flatten_puts_channels_fastest_and_copies_nothing() -> None:
    x = torch.arange(2 * 3 * 4 * 5).view(2, 4, 5, 3).permute(0, 3, 1, 2)
    y = Flatten()(x)
    assert torch.equal(y, torch.arange(120).view(2, 60))
    assert y.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (1, 2, 5, 7), (3, 1, 2, 2)])
@pytest.mark.parametrize("channels_last", [True, False])
def test_halving_pool_is_pytorchs_with_and_without_a_gradient(shape, channels_last) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    expected = nn.MaxPool2d(2)(x)
    with torch.no_grad():
        assert torch.equal(HalvingPool()(x), expected)
    x.requires_grad_()
    assert torch.equal(HalvingPool()(x), expected)
    HalvingPool()(x).sum().backward()
    assert x.grad is not None and x.grad.sum() == expected.numel()
