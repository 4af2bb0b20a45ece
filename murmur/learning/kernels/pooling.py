"""Maximum pooling over windows that do not overlap, for ``training.manual_gradients``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from murmur.learning.kernels.manual_layers import Stage, pair

_aten = torch.ops.aten


def max_pool_stage(
    layer: nn.MaxPool2d, like: Tensor, shape: tuple[int, ...], reuse: bool = False
) -> Stage:
    """The fastest stage for inputs ``shape`` (B, H, W, C); buffers are of the kind of ``like``.

    ``reuse``: whether nobody needs the input any more once it is pooled.
    """
    _, height, width, _ = shape
    if pair(layer.kernel_size) == (2, 2) and height % 2 == 0 and width % 2 == 0:
        return HalvingPoolStage(like, shape, reuse)
    return MaxPoolStage(layer)


class HalvingPoolStage(Stage):
    """Maximum over 2×2 windows by comparing neighbours, first in rows, then in columns.

    Where values are equal the first one in reading order gets the gradient, as in PyTorch, whose
    kernel is slower for the 64 bits of index that it writes beside every maximum. Gradients go
    where values were that are not needed any more: less memory is more of it in the caches.
    """

    def __init__(self, like: Tensor, shape: tuple[int, ...], reuse: bool) -> None:
        batch, height, width, channels = shape
        half = like.new_empty(batch, height, width // 2, channels)
        quarter = like.new_empty(batch, height // 2, width // 2, channels)
        # 1 where the left one, or the upper one, is the maximum; else 0.
        self._is_left, self._is_upper = torch.empty_like(half), torch.empty_like(quarter)
        self._rows, self._y = half, quarter
        self._upper, self._lower = half[:, 0::2], half[:, 1::2]
        self._own = None if reuse else like.new_empty(shape)
        self._dx: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H/2, W/2, C)."""
        self._dx = x if self._own is None else self._own
        left, right = x[:, :, 0::2], x[:, :, 1::2]
        torch.ge(left, right, out=self._is_left)
        torch.maximum(left, right, out=self._rows)
        torch.ge(self._upper, self._lower, out=self._is_upper)
        return torch.maximum(self._upper, self._lower, out=self._y)

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor | None:
        """(B, H/2, W/2, C) to (B, H, W, C)."""
        torch.mul(dy, self._is_upper, out=self._upper)
        torch.sub(dy, self._upper, out=self._lower)
        assert self._dx is not None
        # Not kept: the next step's convolution should find the same memory free.
        dx, self._dx = self._dx, None
        left, right = dx[:, :, 0::2], dx[:, :, 1::2]
        torch.mul(self._rows, self._is_left, out=left)
        torch.sub(self._rows, left, out=right)
        return dx


class MaxPoolStage(Stage):
    """Maximum over windows of any size, by PyTorch's kernel."""

    def __init__(self, layer: nn.MaxPool2d) -> None:
        self._kernel = pair(layer.kernel_size)
        self._x: Tensor | None = None
        self._winners: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H', W', C)."""
        self._x = x.permute(0, 3, 1, 2)
        y, self._winners = _aten.max_pool2d_with_indices(self._x, self._kernel)
        return y.permute(0, 2, 3, 1)

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor | None:
        """(B, H', W', C) to (B, H, W, C)."""
        dx = _aten.max_pool2d_with_indices_backward(
            dy.permute(0, 3, 1, 2),
            self._x,
            self._kernel,
            self._kernel,
            (0, 0),
            (1, 1),
            False,
            self._winners,
        )
        self._x = self._winners = None
        return dx.permute(0, 2, 3, 1)
