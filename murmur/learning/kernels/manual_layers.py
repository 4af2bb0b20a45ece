"""Layers with a forward and a backward written out by hand, for ``manual_gradients``.

A stage serves one batch size, over buffers that it made once. Images are (B, H, W, C), contiguous:
channels-last. The rules that let stages share memory:

* ``forward(x)`` may overwrite ``x``. It writes into ``out``, the buffer that its successor asked
  for, or where it likes.
* ``input`` is the buffer that a stage asks of its predecessor, or None. A stage that gets another
  tensor copies it there itself.
* ``backward(dy, scale, retention)`` may overwrite ``dy``, returns the gradient with respect to
  ``x`` (None for the first stage, where nobody needs it), and moves its own parameters' *target*,
  a view into a flat vector: target ← retention·target + scale·(gradient summed over the batch).
  With the parameters themselves as the target, that one operation is gradient and descent at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from murmur.learning.layers import Dropout

_aten = torch.ops.aten
_relu_backward = _aten.threshold_backward.grad_input
_tanh_backward = _aten.tanh_backward.grad_input

Affine = tuple[Tensor, Tensor | None]
"""A layer's weight and bias."""

# With fewer columns than this a product is several times faster the other way round.
_NARROW = 16


class Stage(ABC):
    """One layer at one batch size; see the module's text for the protocol."""

    input: Tensor | None = None

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""

    @abstractmethod
    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor | None:
        """The gradient with respect to the input; moves the parameters' target."""


class LinearStage(Stage):
    """x·W + b as one product: the input carries a column of ones, the matrix a last row b.

    Args:
        parameters: weight (out, in) and bias (out,) or None, as views into a flat vector.
        target: likewise, of the vector that ``backward`` moves.
        batch: B.
        out: where to write the output (B, out), or None.
        first: whether this is the first stage. Then ``forward`` gets its input with the column of
            ones already in it.
    """

    def __init__(
        self, parameters: Affine, target: Affine, batch: int, out: Tensor | None, first: bool
    ) -> None:
        self._matrix, self._target = _matrix(parameters), _matrix(target)
        rows, columns = self._matrix.shape
        self._out = self._matrix.new_empty(batch, columns) if out is None else out
        self._sum = self._matrix.new_empty(columns, rows) if columns < _NARROW else None
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

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor | None:
        """(B, out) to (B, in)."""
        if not self._first:
            self._input_gradient(dy)  # before the update: the target may be this very matrix
        self._move(dy, scale, retention)
        return None if self._first else self._dx

    def _product(self) -> None:
        torch.mm(self._x, self._matrix, out=self._out)

    def _input_gradient(self, dy: Tensor) -> None:
        torch.mm(dy, self._weight_transposed, out=self._dx)

    def _move(self, dy: Tensor, scale: float, retention: float) -> None:
        if self._sum is None:
            self._target.addmm_(self._x.t(), dy, beta=retention, alpha=scale)
        else:
            move(self._target, torch.mm(dy.t(), self._x, out=self._sum).t(), scale, retention)


class ConvolutionStage(Stage):
    """A convolution by PyTorch's own kernels, which are fastest in this layout.

    Args:
        layer: gives padding.
        parameters: weight (out, in, height, width) and bias (out,) or None.
        target: likewise, of the vector that ``backward`` moves.
        first: whether this is the first stage.
    """

    def __init__(self, layer: nn.Conv2d, parameters: Affine, target: Affine, first: bool) -> None:
        self._weight, self._bias = parameters
        self._targets = [tensor for tensor in target if tensor is not None]
        self._geometry = (layer.stride, layer.padding, layer.dilation, False, (0, 0), 1)
        self._bias_sizes = None if self._bias is None else [len(self._bias)]
        self._wanted = [not first, True, self._bias is not None]
        self._x: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, in) to (B, H', W', out)."""
        self._x = x.permute(0, 3, 1, 2)
        y = _aten.convolution(self._x, self._weight, self._bias, *self._geometry)
        return y.permute(0, 2, 3, 1)

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor | None:
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
            move(target, gradient, scale, retention)
        return None if dx is None else dx.permute(0, 2, 3, 1)


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
        self._bias, self._target, self._out = bias, target.unsqueeze(0), out
        # A product with ones sums faster than a reduction does.
        self._ones = bias.new_ones(1, math.prod(shape[:3]))

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) plus the bias."""
        return torch.add(x, self._bias, out=x if self._out is None else self._out)

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor | None:
        """Dy itself."""
        flat = dy.reshape(self._ones.shape[1], -1)
        self._target.addmm_(self._ones, flat, beta=retention, alpha=scale)
        return dy


class ActivationStage(Stage):
    """ReLU or tanh, in place where it can be: both derivatives are functions of the output."""

    def __init__(self, layer: nn.ReLU | nn.Tanh, out: Tensor | None) -> None:
        self.input = out
        self._is_relu = isinstance(layer, nn.ReLU)
        self._y: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The activation of every element."""
        out = x if self.input is None else self.input
        if out is x:
            self._y = x.relu_() if self._is_relu else x.tanh_()
        elif self._is_relu:
            self._y = torch.clamp_min(x, 0, out=out)
        else:
            self._y = torch.tanh(x, out=out)
        return out

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor | None:
        """Dy times the derivative."""
        if self._is_relu:
            _relu_backward(dy, self._y, 0, grad_input=dy)
        else:
            _tanh_backward(dy, self._y, grad_input=dy)
        self._y = None
        return dy


class DropoutStage(Stage):
    """``murmur.learning.layers.Dropout`` over (B, ...)."""

    def __init__(self, layer: Dropout, mask: Tensor, out: Tensor | None) -> None:
        self._layer, self._mask = layer, mask
        # Never in place: the layer before may need its output again.
        self._out = torch.empty_like(mask) if out is None else out

    def forward(self, x: Tensor) -> Tensor:
        """X times a fresh mask."""
        self._layer.draw(self._mask)
        torch.mul(x, self._mask, out=self._out)
        return self._out

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor | None:
        """Dy times the same mask."""
        return dy.mul_(self._mask)


class FlattenStage(Stage):
    """(B, H, W, C) to (B, H*W*C), a view."""

    def __init__(self, shape: tuple[int, ...], out: Tensor | None) -> None:
        self._shape, self._out = shape, out
        self.input = None if out is None else out.view(shape)

    def forward(self, x: Tensor) -> Tensor:
        """The flattened view."""
        if self._out is not None and x is self.input:
            return self._out
        return x.reshape(self._shape[0], -1)

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor | None:
        """The view back."""
        return dy.view(self._shape)


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """PyTorch's sizes, which may be one number for both axes, as two."""
    height, width = value if isinstance(value, tuple) else (value, value)
    return height, width


def move(target: Tensor, gradient: Tensor, scale: float, retention: float) -> None:
    """Target ← retention·target + scale·gradient, whatever was in a target that is not retained.

    In the target's precision, which may be more than the gradient's.
    """
    if retention == 0:
        target.copy_(gradient).mul_(scale)
        return
    if retention != 1:
        target.mul_(retention)
    target.add_(gradient, alpha=scale)


def _matrix(parameters: Affine) -> Tensor:
    """(in + 1, out), the bias its last row, over the memory that ``FlatModel`` gave the two."""
    weight, bias = parameters
    matrix = weight.t()
    if bias is None:
        return matrix
    rows, columns = matrix.shape
    return matrix.as_strided((rows + 1, columns), (columns, 1))
