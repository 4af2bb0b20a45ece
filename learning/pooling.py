"""Maximum pooling over windows that do not overlap, for ``learning.chain``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from learning.stages import Stage, pair

_aten = torch.ops.aten


def max_pool_stage(layer: nn.MaxPool2d, like: Tensor, shape: tuple[int, ...]) -> Stage:
    """The fastest stage for inputs ``shape`` (B, H, W, C); buffers are of the kind of ``like``."""
    _, height, width, _ = shape
    if pair(layer.kernel_size) == (2, 2) and height % 2 == 0 and width % 2 == 0:
        return HalvingPoolStage(like, shape)
    return MaxPoolStage(layer)


class HalvingPoolStage(Stage):
    """Maximum over 2×2 windows by comparing neighbours, first in rows, then in columns.

    Where values are equal the first one in reading order gets the gradient, as in PyTorch, whose
    kernel is slower for the 64 bits of index that it writes beside every maximum.
    """

    def __init__(self, like: Tensor, shape: tuple[int, ...]) -> None:
        batch, height, width, channels = shape
        half = like.new_empty(batch, height, width // 2, channels)
        quarter = like.new_empty(batch, height // 2, width // 2, channels)
        # 1 where the left one, or the upper one, is the maximum; else 0.
        self._is_left, self._is_upper = torch.empty_like(half), torch.empty_like(quarter)
        self._rows, self._y = half, quarter
        self._upper, self._lower = half[:, 0::2], half[:, 1::2]
        self._dx, self._drows = like.new_empty(shape), torch.empty_like(half)
        self._dleft, self._dright = self._dx[:, :, 0::2], self._dx[:, :, 1::2]
        self._dupper, self._dlower = self._drows[:, 0::2], self._drows[:, 1::2]

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H/2, W/2, C)."""
        left, right = x[:, :, 0::2], x[:, :, 1::2]
        torch.ge(left, right, out=self._is_left)
        torch.maximum(left, right, out=self._rows)
        torch.ge(self._upper, self._lower, out=self._is_upper)
        return torch.maximum(self._upper, self._lower, out=self._y)

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor | None:
        """(B, H/2, W/2, C) to (B, H, W, C)."""
        torch.mul(dy, self._is_upper, out=self._dupper)
        torch.sub(dy, self._dupper, out=self._dlower)
        torch.mul(self._drows, self._is_left, out=self._dleft)
        torch.sub(self._drows, self._dleft, out=self._dright)
        return self._dx


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
