import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from murmur_kernels.stages import HalvingPoolStage, MaxPoolStage, max_pool_stage


def pooled(images: torch.Tensor, layer: nn.MaxPool2d, dy: torch.Tensor):
    """What autograd makes of (B, H, W, C), and what the stage makes of it."""
    x = images.permute(0, 3, 1, 2).clone().requires_grad_()
    y = functional.max_pool2d(x, layer.kernel_size)
    y.backward(dy.permute(0, 3, 1, 2))
    stage = max_pool_stage(layer, images, tuple(images.shape))
    result = stage.forward(images), stage.backward(dy, 1.0, 1.0)
    return (y.permute(0, 2, 3, 1), x.grad.permute(0, 2, 3, 1)), result


@pytest.mark.parametrize("levels", [2, 3, 1000])
def test_halving_is_pytorchs_pooling_bit_for_bit_also_where_values_are_equal(levels):
    rng = np.random.default_rng(levels)
    images = torch.from_numpy(rng.integers(0, levels, (5, 8, 6, 3)).astype(np.float32))
    dy = torch.from_numpy(rng.normal(size=(5, 4, 3, 3)).astype(np.float32))
    expected, result = pooled(images, nn.MaxPool2d(2), dy)
    for theirs, ours in zip(expected, result, strict=True):
        assert torch.equal(theirs, ours)


def test_equal_values_in_every_pattern_give_the_gradient_to_the_first():
    patterns = np.array(np.meshgrid(*[[0.0, 1.0]] * 4)).reshape(4, -1).T
    images = torch.from_numpy(patterns.reshape(16, 2, 2, 1).astype(np.float32))
    expected, result = pooled(images, nn.MaxPool2d(2), torch.ones(16, 1, 1, 1))
    assert torch.equal(expected[1], result[1])
    assert result[1].sum() == 16


@pytest.mark.parametrize(
    ("kernel", "shape", "kind"),
    [
        (2, (1, 8, 8, 2), HalvingPoolStage),
        (2, (1, 7, 8, 2), MaxPoolStage),
        (2, (1, 8, 7, 2), MaxPoolStage),
        (3, (1, 9, 9, 2), MaxPoolStage),
    ],
)
def test_other_windows_are_left_to_pytorch(kernel, shape, kind):
    assert type(max_pool_stage(nn.MaxPool2d(kernel), torch.empty(0), shape)) is kind
    images = torch.arange(np.prod(shape), dtype=torch.float32).reshape(shape)
    dy = torch.ones(shape[0], shape[1] // kernel, shape[2] // kernel, shape[3])
    expected, result = pooled(images, nn.MaxPool2d(kernel), dy)
    for theirs, ours in zip(expected, result, strict=True):
        assert torch.equal(theirs, ours)
