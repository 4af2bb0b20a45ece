"""Layers with a forward and a backward written out by hand, for ``sequences``.

A stage serves one batch size, over buffers that it made once. Images are (B, H, W, C), contiguous:
channels-last. The rules that let stages share memory:

* ``forward(x)`` may overwrite ``x``. It writes into ``out``, the buffer that its successor asked
  for, or where it likes.
* ``input`` is the buffer that a stage asks of its predecessor, or None. A stage that gets another
  tensor copies it there itself.
* ``backward(dy, scale, weight_factor)`` may overwrite ``dy``, returns the gradient with respect to
  ``x`` (None for the first stage, where nobody needs it), and moves its own parameters' *target*,
  a view into a flat vector: target ← weight_factor·target + scale·(gradient summed over the batch).
  With the parameters themselves as the target, that one operation is gradient and descent at once.

Parameters lie in such a vector as ``stored_views`` has them. ``half`` has stages that compute in
bfloat16.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from murmur.learning.models import Dropout
from murmur.learning.training.parameters import FlatModel

_aten = torch.ops.aten
relu_backward = _aten.threshold_backward.grad_input
tanh_backward = _aten.tanh_backward.grad_input

Affine = tuple[Tensor, Tensor | None]
"""A layer's weight and bias."""

# With fewer columns than this a product is several times faster the other way round.
NARROW = 16


def stored_views(flat: FlatModel, vector: Tensor) -> dict[str, Tensor]:
    """Views into ``vector`` (d,) under PyTorch's names and shapes, stored as stages like them.

    Parameters follow each other as the model has them, but that a convolution's weight is stored as
    (out, height, width, in), channels-last; and a linear layer's as (in, out), so that weight and
    bias together are one matrix with the bias as its last row.
    """
    return {name: _stored(part) for name, part in flat.views(vector).items()}


def _stored(part: Tensor) -> Tensor:
    """One parameter, stored as stages like it, under PyTorch's shape."""
    if part.dim() == 4:
        out, channels, height, width = part.shape
        return part.view(out, height, width, channels).permute(0, 3, 1, 2)
    if part.dim() == 2:
        return part.view(part.shape[1], part.shape[0]).t()
    return part


def affine(views: dict[str, Tensor], layer: str) -> Affine:
    """Weight and bias of the layer of this name."""
    return views[f"{layer}.weight"], views.get(f"{layer}.bias")


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """PyTorch's sizes, which may be one number for both axes, as (height, width)."""
    if isinstance(value, int):
        return value, value
    height, width = value
    return height, width


def move(target: Tensor, gradient: Tensor, scale: float, weight_factor: float) -> None:
    """Target ← weight_factor·target + scale·gradient, in the target's own precision.

    Args:
        target: of any precision, at least the gradient's.
        gradient: of the same shape.
        scale: of the gradient.
        weight_factor: 0: whatever was in the target is forgotten, NaN as well.
    """
    if weight_factor == 0:
        target.copy_(gradient).mul_(scale)
        return
    if weight_factor != 1:
        target.mul_(weight_factor)
    target.add_(gradient, alpha=scale)


class Stage(ABC):
    """One layer at one batch size; see the module's text for the protocol.

    Attributes:
        input: the buffer that it asks of its predecessor, or None.
    """

    input: Tensor | None = None

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""

    @abstractmethod
    def backward(self, dy: Tensor, scale: float, weight_factor: float) -> Tensor | None:
        """The gradient with respect to the input; moves the parameters' target."""


class LinearStage(Stage):
    """x·W + b as one product: the input carries a column of ones, the matrix a last row b.

    Args:
        parameters: weight (out, in) and bias (out,) or None, as ``stored_views`` has them.
        target: likewise, of the vector that ``backward`` moves.
        batch: B.
        out: where to write the output (B, out), or None.
        first: whether this is the first stage. Then ``forward`` gets its input with the column of
            ones already in it.
    """

    def __init__(
        self, parameters: Affine, target: Affine, batch: int, out: Tensor | None, first: bool
    ) -> None:
        self._matrix = _matrix(parameters)
        self._target = _matrix(target)
        rows, columns = self._matrix.shape
        if out is None:
            out = self._matrix.new_empty(batch, columns)
        self._out = out
        self._sum: Tensor | None = None
        if columns < NARROW:
            self._sum = self._matrix.new_empty(columns, rows)
        self._first = first
        if first:
            return
        features = parameters[0].shape[1]
        self._x = self._matrix.new_ones(batch, rows)
        self.input = self._x[:, :features]
        self._weight_transposed = self._matrix[:features].t()
        self._dx = self._matrix.new_empty(batch, features)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in) to (B, out)."""
        if self._first:
            self._x = x
        elif x is not self.input:
            self.input.copy_(x)  # type: ignore[union-attr]
        self._product()
        return self._out

    def backward(self, dy: Tensor, scale: float, weight_factor: float) -> Tensor | None:
        """(B, out) to (B, in)."""
        if self._first:
            self._move(dy, scale, weight_factor)
            return None
        self._input_gradient(dy)  # before the update: the target may be this very matrix
        self._move(dy, scale, weight_factor)
        return self._dx

    def _product(self) -> None:
        """The output, from input and parameters."""
        torch.mm(self._x, self._matrix, out=self._out)

    def _input_gradient(self, dy: Tensor) -> None:
        """The gradient with respect to the input, from that of the output."""
        torch.mm(dy, self._weight_transposed, out=self._dx)

    def _move(self, dy: Tensor, scale: float, weight_factor: float) -> None:
        """Move the target by the parameters' gradient."""
        if self._sum is None:
            self._target.addmm_(self._x.t(), dy, beta=weight_factor, alpha=scale)
        else:
            move(self._target, torch.mm(dy.t(), self._x, out=self._sum).t(), scale, weight_factor)


def _matrix(parameters: Affine) -> Tensor:
    """(in + 1, out), the bias its last row, over the memory that ``stored_views`` gave the two."""
    weight, bias = parameters
    matrix = weight.t()
    if bias is None:
        return matrix
    rows, columns = matrix.shape
    return matrix.as_strided((rows + 1, columns), (columns, 1))


class ConvolutionStage(Stage):
    """A convolution by PyTorch's own kernels, which are fastest in this layout.

    Args:
        layer: gives stride, padding and dilation.
        parameters: weight (out, in, height, width) and bias (out,) or None.
        target: likewise, of the vector that ``backward`` moves.
        first: whether this is the first stage.
    """

    def __init__(self, layer: nn.Conv2d, parameters: Affine, target: Affine, first: bool) -> None:
        self._weight, self._bias = parameters
        self._targets = [tensor for tensor in target if tensor is not None]
        self._geometry = (layer.stride, layer.padding, layer.dilation, False, (0, 0), 1)
        self._bias_sizes: list[int] | None = None
        if self._bias is not None:
            self._bias_sizes = [len(self._bias)]
        self._wanted = [not first, True, self._bias is not None]
        self._x: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, in) to (B, H', W', out)."""
        self._x = x.permute(0, 3, 1, 2)
        y = _aten.convolution(self._x, self._weight, self._bias, *self._geometry)
        return y.permute(0, 2, 3, 1)

    def backward(self, dy: Tensor, scale: float, weight_factor: float) -> Tensor | None:
        """(B, H', W', out) to (B, H, W, in)."""
        dx, *gradients = _aten.convolution_backward(
            dy.permute(0, 3, 1, 2),
            self._x,
            self._weight,
            self._bias_sizes,
            *self._geometry,
            self._wanted,
        )
        self._x = None
        for target, gradient in zip(self._targets, gradients, strict=False):
            move(target, gradient, scale, weight_factor)
        if dx is None:
            return None
        return dx.permute(0, 2, 3, 1)


def is_strided(layer: nn.Conv2d) -> bool:
    """Returns whether ``PatchConvolutionStage`` computes ``layer``: strides above 1, no padding."""
    unpadded = layer.padding == (0, 0) and layer.dilation == (1, 1)
    return unpadded and min(layer.stride) > 1


class PatchConvolutionStage(Stage):
    """A strided convolution as two matrix products over copied patches.

    Where a stride leaves few patches and channels are few, these beat PyTorch's kernels, whose cost
    per call and for the gradient of the input does not shrink as fast.

    Args:
        layer: gives kernel and stride; it has neither padding nor dilation.
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
        batch, height, width, channels = shape
        taps = kernel_y, kernel_x = pair(layer.kernel_size)
        stride_y, stride_x = pair(layer.stride)
        places = (batch, (height - kernel_y) // stride_y + 1, (width - kernel_x) // stride_x + 1)
        weight, self._bias = parameters
        self._matrix = _patch_matrix(weight)
        self._transposed = self._matrix.t()
        self._target = _patch_matrix(target[0])
        self._bias_target = target[1]
        line = width * channels
        steps = (height * line, stride_y * line, stride_x * channels)
        patches = math.prod(places)
        size = self._matrix.shape[1]
        # The copy runs along memory: along a row of pixels for one channel, else along channels.
        if channels == 1:
            self._sizes: tuple[int, ...] = taps + places
            self._strides: tuple[int, ...] = (line, 1, *steps)
            self._copied = weight.new_empty(self._sizes)
            self._patches = self._copied.view(size, patches).t()
        else:
            self._sizes = (*places, kernel_y, kernel_x * channels)
            self._strides = (*steps, line, 1)
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

    def backward(self, dy: Tensor, scale: float, weight_factor: float) -> Tensor | None:
        """(B, H', W', out) to (B, H, W, in)."""
        dy = dy.reshape(self._y.shape)
        if self._dx is not None:
            # Before the update: the target may be this very matrix.
            torch.mm(dy, self._matrix, out=self._dpatches)
            self._dx.zero_()
            for place, part in self._overlaps:
                place.add_(part)
        dy_transposed = dy.t()
        self._target.addmm_(dy_transposed, self._patches, beta=weight_factor, alpha=scale)
        if self._bias_target is not None:
            self._bias_target.addmv_(dy_transposed, self._ones, beta=weight_factor, alpha=scale)
        return self._dx


def _patch_matrix(weight: Tensor) -> Tensor:
    """(out, in, height, width) as (out, height * width * in), a view of what is channels-last."""
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
    down, right = stride
    image, line, pixel, _ = dx.stride()
    parts = dpatches.view(*places, *taps, -1)
    result = []
    for y in range(0, taps[0], down):
        for x in range(0, taps[1], right):
            part = parts[:, :, :, y : y + down, x : x + right].transpose(2, 3)
            _, _, high, _, wide, channels = part.shape
            place = dx.as_strided(
                (batch, rows, high, columns, wide, channels),
                (image, down * line, line, right * pixel, pixel, 1),
                dx.storage_offset() + y * line + x * pixel,
            )
            result.append((place, part))
    return result


class BiasStage(Stage):
    """A convolution's bias, added after pooling: the same maxima, at a fraction of the places.

    Args:
        bias: (C,).
        target: likewise, of the vector that ``backward`` moves.
        shape: (B, H, W, C).
        out: where to write the output, or None: in place.
    """

    def __init__(
        self, bias: Tensor, target: Tensor, shape: tuple[int, ...], out: Tensor | None
    ) -> None:
        self._bias = bias
        self._target = target.unsqueeze(0)
        self._out = out
        # A product with ones sums faster than a reduction does.
        self._ones = bias.new_ones(1, math.prod(shape[:3]))

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) plus the bias."""
        if self._out is None:
            return x.add_(self._bias)
        return torch.add(x, self._bias, out=self._out)

    def backward(self, dy: Tensor, scale: float, weight_factor: float) -> Tensor | None:
        """Returns ``dy`` as it is."""
        flat = dy.reshape(self._ones.shape[1], -1)
        self._target.addmm_(self._ones, flat, beta=weight_factor, alpha=scale)
        return dy


class ActivationStage(Stage):
    """ReLU or tanh, in place where it can be: both derivatives are functions of the output.

    Args:
        layer: says which.
        out: where to write the output, or None: in place.
    """

    def __init__(self, layer: nn.ReLU | nn.Tanh, out: Tensor | None) -> None:
        self.input = out
        self._is_relu = isinstance(layer, nn.ReLU)
        self._y: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The activation of every element."""
        self._y = x
        if self.input is not None:
            self._y = self.input
        if self._is_relu:
            return torch.clamp_min(x, 0, out=self._y)
        return torch.tanh(x, out=self._y)

    def backward(self, dy: Tensor, scale: float, weight_factor: float) -> Tensor | None:
        """``dy`` times the derivative, in place."""
        if self._is_relu:
            relu_backward(dy, self._y, 0, grad_input=dy)
        else:
            tanh_backward(dy, self._y, grad_input=dy)
        self._y = None
        return dy


class DropoutStage(Stage):
    """``murmur.learning.models.Dropout`` over a batch.

    Args:
        layer: draws the masks.
        mask: memory (B, ...) for one.
        out: where to write the output, or None.
    """

    def __init__(self, layer: Dropout, mask: Tensor, out: Tensor | None) -> None:
        self._layer = layer
        self._mask = mask
        # Never in place: the layer before may need its output again.
        if out is None:
            out = torch.empty_like(mask)
        self._out = out

    def forward(self, x: Tensor) -> Tensor:
        """``x`` times a fresh mask."""
        self._layer.draw(self._mask)
        torch.mul(x, self._mask, out=self._out)
        return self._out

    def backward(self, dy: Tensor, scale: float, weight_factor: float) -> Tensor | None:
        """``dy`` times the same mask."""
        return dy.mul_(self._mask)


class FlattenStage(Stage):
    """(B, H, W, C) to (B, H*W*C), a view.

    Args:
        shape: of the input.
        out: where the next stage wants it, or None.
    """

    def __init__(self, shape: tuple[int, ...], out: Tensor | None) -> None:
        self._shape = shape
        self._out = out
        if out is not None:
            self.input = out.view(shape)

    def forward(self, x: Tensor) -> Tensor:
        """The flattened view."""
        if self._out is not None and x is self.input:
            return self._out
        return x.reshape(self._shape[0], -1)

    def backward(self, dy: Tensor, scale: float, weight_factor: float) -> Tensor | None:
        """The view back."""
        return dy.view(self._shape)


def max_pool_stage(layer: nn.MaxPool2d, like: Tensor, shape: tuple[int, ...]) -> Stage:
    """The fastest stage for pooling whose windows do not overlap.

    Args:
        layer: gives the size of the windows.
        like: of the kind of the buffers.
        shape: (B, H, W, C) of the input.
    """
    _, height, width, _ = shape
    if pair(layer.kernel_size) == (2, 2) and height % 2 == 0 and width % 2 == 0:
        return HalvingPoolStage(like, shape)
    return MaxPoolStage(layer)


class HalvingPoolStage(Stage):
    """Maximum over 2×2 windows by comparing neighbours, first in rows, then in columns.

    Where values are equal the first one in reading order gets the gradient, as in PyTorch, whose
    kernel is slower for the 64 bits of index that it writes beside every maximum.

    Args:
        like: of the kind of the buffers.
        shape: (B, H, W, C) of the input, H and W even.
    """

    def __init__(self, like: Tensor, shape: tuple[int, ...]) -> None:
        batch, height, width, channels = shape
        self._rows = like.new_empty(batch, height, width // 2, channels)
        self._y = like.new_empty(batch, height // 2, width // 2, channels)
        # 1 where the left one, or the upper one, is the maximum; else 0.
        self._is_left = torch.empty_like(self._rows)
        self._is_upper = torch.empty_like(self._y)
        self._upper = self._rows[:, 0::2]
        self._lower = self._rows[:, 1::2]
        self._dx = like.new_empty(shape)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B, H/2, W/2, C)."""
        left = x[:, :, 0::2]
        right = x[:, :, 1::2]
        torch.ge(left, right, out=self._is_left)
        torch.maximum(left, right, out=self._rows)
        torch.ge(self._upper, self._lower, out=self._is_upper)
        return torch.maximum(self._upper, self._lower, out=self._y)

    def backward(self, dy: Tensor, scale: float, weight_factor: float) -> Tensor | None:
        """(B, H/2, W/2, C) to (B, H, W, C)."""
        torch.mul(dy, self._is_upper, out=self._upper)
        torch.sub(dy, self._upper, out=self._lower)
        left = self._dx[:, :, 0::2]
        torch.mul(self._rows, self._is_left, out=left)
        torch.sub(self._rows, left, out=self._dx[:, :, 1::2])
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

    def backward(self, dy: Tensor, scale: float, weight_factor: float) -> Tensor | None:
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
