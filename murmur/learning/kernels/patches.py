"""A strided convolution as matrix products over copied patches, for ``manual_gradients``.

Where a stride leaves few patches and channels are few, two plain products beat PyTorch's kernels,
whose cost per call and for the gradient of the input does not shrink as fast.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from murmur.learning.kernels.manual_layers import Affine, Stage, pair


class PatchConvolutionStage(Stage):
    """A convolution without padding or dilation; see ``manual_layers`` for the protocol.

    Args:
        layer: gives kernel and stride.
        parameters: weight (out, in, height, width) and bias (out,) or None.
        target: likewise, of the vector that ``backward`` moves.
        shape: (B, H, W, in) of the input.
        first: whether this is the first stage.
    """

    def __init__(
        self,
        layer: nn.Conv2d,
        parameters: Affine,
        target: Affine,
        shape: tuple[int, ...],
        first: bool,
    ) -> None:
        (batch, height, width, channels), (kernel_y, kernel_x) = shape, pair(layer.kernel_size)
        stride_y, stride_x = pair(layer.stride)
        rows, columns = (height - kernel_y) // stride_y + 1, (width - kernel_x) // stride_x + 1
        weight, self._bias = parameters
        self._matrix = _as_matrix(weight)
        self._transposed = self._matrix.t()
        self._target, self._bias_target = _as_matrix(target[0]), target[1]
        image, line = height * width * channels, width * channels
        taps, places = (kernel_y, kernel_x), (batch, rows, columns)
        steps = (image, stride_y * line, stride_x * channels)
        patches, size = batch * rows * columns, self._matrix.shape[1]
        # The copy runs along memory: along a row of pixels for one channel, else along channels.
        if channels == 1:
            self._sizes, self._strides = taps + places, (line, 1, *steps)
            self._copied = weight.new_empty(*taps, *places)
            self._patches = self._copied.view(size, patches).t()
        else:
            self._sizes, self._strides = (*places, kernel_y, kernel_x * channels), (*steps, line, 1)
            self._copied = weight.new_empty(self._sizes)
            self._patches = self._copied.view(patches, size)
        self._y = weight.new_empty(patches, len(weight))
        self._output = self._y.view(*places, -1)
        self._ones = weight.new_ones(patches)
        self._dx: Tensor | None = None
        if not first:
            self._dx = weight.new_empty(shape)
            self._dpatches = weight.new_empty(patches, size)
            self._overlaps = _overlaps(self._dx, self._dpatches, taps, places, pair(layer.stride))

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, in) to (B, H', W', out)."""
        self._copied.copy_(x.contiguous().as_strided(self._sizes, self._strides))
        if self._bias is None:
            torch.mm(self._patches, self._transposed, out=self._y)
        else:
            torch.addmm(self._bias, self._patches, self._transposed, out=self._y)
        return self._output

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor | None:
        """(B, H', W', out) to (B, H, W, in)."""
        dy = dy.reshape(self._y.shape)
        if self._dx is not None:
            # Before the update: the target may be this very matrix.
            torch.mm(dy, self._matrix, out=self._dpatches)
            self._dx.zero_()
            for place, part in self._overlaps:
                place.add_(part)
        dy_transposed = dy.t()
        self._target.addmm_(dy_transposed, self._patches, beta=retention, alpha=scale)
        if self._bias_target is not None:
            self._bias_target.addmv_(dy_transposed, self._ones, beta=retention, alpha=scale)
        return self._dx


def is_strided(layer: nn.Conv2d) -> bool:
    """Whether ``PatchConvolutionStage`` is the way to compute ``layer``."""
    unpadded = layer.padding == (0, 0) and layer.dilation == (1, 1)
    return unpadded and min(layer.stride) > 1


def _as_matrix(weight: Tensor) -> Tensor:
    """(out, in, height, width) as (out, height * width * in), a view of ``FlatModel``'s layout."""
    return weight.permute(0, 2, 3, 1).view(len(weight), -1)


def _overlaps(
    dx: Tensor,
    dpatches: Tensor,
    taps: tuple[int, int],
    places: tuple[int, int, int],
    stride: tuple[int, int],
) -> list[tuple[Tensor, Tensor]]:
    """Pairs (view of ``dx``, view of ``dpatches``) whose sums make up the gradient.

    Patches overlap, but a block of taps no larger than the stride does not overlap itself, so that
    the block's share of every patch is added in one operation.
    """
    batch, rows, columns = places
    image, line, pixel, _ = dx.stride()
    parts = dpatches.view(*places, *taps, -1)
    result = []
    for y in range(0, taps[0], stride[0]):
        for x in range(0, taps[1], stride[1]):
            part = parts[:, :, :, y : y + stride[0], x : x + stride[1]].transpose(2, 3)
            _, _, high, _, wide, channels = part.shape
            place = dx.as_strided(
                (batch, rows, high, columns, wide, channels),
                (image, stride[0] * line, line, stride[1] * pixel, pixel, 1),
                dx.storage_offset() + y * line + x * pixel,
            )
            result.append((place, part))
    return result
