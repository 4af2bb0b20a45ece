"""The first convolution of a network with its pooling, bias and ReLU as one stage.

Today's stages, one per layer, are the general way and the reference that tests hold this one to.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from murmur.learning.kernels.fused_kernels import Geometry, compiled
from murmur.learning.kernels.manual_layers import Affine, Stage, move, pair

_LANES = 8  # of the narrowest vector
_LARGEST = (25, 75)  # taps of a channel, which are to fit the registers, and of all channels


class FusedBlock:
    """The layers that one stage computes.

    Attributes:
        size: how many layers.
        geometry: of the kernels.
        padding: (height, width).
    """

    def __init__(
        self, layers: Sequence[nn.Module], convolution: nn.Conv2d, shape: Sequence[int]
    ) -> None:
        height, width, channels = shape
        self.padding = vertical, horizontal = pair(convolution.padding)  # type: ignore[arg-type]
        relu = isinstance(layers[2], nn.ReLU)
        self.size = 3 if relu else 2
        kernel, image = (
            pair(convolution.kernel_size),
            (height + 2 * vertical, width + 2 * horizontal),
        )
        self.geometry = Geometry(channels, convolution.out_channels, kernel, image, relu)

    @classmethod
    def beginning(cls, layers: Sequence[nn.Module], shape: Sequence[int]) -> FusedBlock | None:
        """That of a supported sequence for images ``shape`` (H, W, C); None where there is none."""
        first, pool = layers[:2]
        if not isinstance(first, nn.Conv2d) or not isinstance(pool, nn.MaxPool2d):
            return None
        area = first.kernel_size[0] * first.kernel_size[1]
        plain = first.stride == first.dilation == (1, 1) and pair(pool.kernel_size) == (2, 2)
        small = area <= _LARGEST[0] and area * first.in_channels <= _LARGEST[1]
        if not plain or not small or first.out_channels % _LANES:
            return None
        return cls(layers, first, shape)


class FusedStage(Stage):
    """``block`` for ``batch`` images; see ``manual_layers`` for the protocol.

    Args:
        parameters: weight (out, in, height, width) and bias (out,) or None.
        target: likewise, of the vector that ``backward`` moves.
    """

    def __init__(self, block: FusedBlock, parameters: Affine, target: Affine, batch: int) -> None:
        shape = block.geometry
        self._kernels, self._batch = compiled(shape), batch
        self._weight, bias = parameters
        self._bias = self._weight.new_zeros(shape.channels) if bias is None else bias
        self._target, self._bias_target = target
        self._padded: Tensor | None = None
        if block.padding != (0, 0):
            (height, width), (down, right) = shape.image, block.padding
            self._padded = self._weight.new_zeros(batch, height, width, shape.channels_in)
            self._inner = self._padded[:, down : height - down, right : width - right]
        self._x: Tensor | None = None
        self._y = self._weight.new_empty(batch, *shape.pooled, shape.channels)
        self._places = torch.empty_like(self._y, dtype=torch.uint8)
        self._taps = self._weight.new_empty(shape.channels_in, *shape.kernel, shape.channels)
        self._gradient = torch.empty_like(self._taps)
        self._bias_gradient = torch.empty_like(self._bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, in) to (B, H', W', out)."""
        if self._padded is None:
            self._x = x.contiguous()
        else:
            self._inner.copy_(x)
            self._x = self._padded
        self._taps.copy_(self._weight.permute(1, 2, 3, 0))
        tensors = (self._x, self._taps, self._bias, self._y, self._places)
        self._kernels.forward(self._batch, *(tensor.data_ptr() for tensor in tensors))
        return self._y

    def infer(self, images: Tensor) -> Tensor:
        """``forward`` of images (B, in, H, W), channels-last, as PyTorch's layers have them."""
        return self.forward(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def backward(self, dy: Tensor, scale: float, retention: float) -> None:
        """(B, H', W', out); nobody needs the images' gradient."""
        assert self._x is not None
        self._gradient.zero_()
        self._bias_gradient.zero_()
        dy = dy.contiguous()
        tensors = (self._x, dy, self._places, self._gradient, self._bias_gradient)
        self._kernels.backward(self._batch, *(tensor.data_ptr() for tensor in tensors))
        self._x = None
        move(self._target, self._gradient.permute(3, 0, 1, 2), scale, retention)
        if self._bias_target is not None:
            move(self._bias_target, self._bias_gradient, scale, retention)
