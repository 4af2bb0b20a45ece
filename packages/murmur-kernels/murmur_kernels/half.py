"""Layers that compute in bfloat16, on processors that do so: convolutions and large linear ones.

Only what such a layer multiplies, and what it returns, is rounded. Between the layers, in all
others, and in parameters and their updates, numbers stay float32.
"""

import torch
from torch import Tensor, nn

from murmur_kernels.stages import Affine, ConvolutionStage, LinearStage, is_strided, move

HALF = torch.bfloat16
# Weights of a linear layer; with fewer, rounding takes what the products gain.
_LARGE = 512 * 512


def computes_half(layer: object) -> bool:
    """Tells whether ``layer`` gains by bfloat16.

    Large linear layers do, and convolutions, but those made of two plain products.
    """
    if isinstance(layer, nn.Linear):
        return layer.weight.numel() >= _LARGE
    return isinstance(layer, nn.Conv2d) and not is_strided(layer)


def half_parameters(parameters: Affine) -> Affine:
    """Copies of weight and bias, rounded to bfloat16."""
    weight, bias = parameters
    if bias is None:
        return weight.to(HALF), None
    return weight.to(HALF), bias.to(HALF)


class HalfConvolutionStage(ConvolutionStage):
    """``ConvolutionStage`` with bfloat16 inside, never the first.

    Args:
        layer: see ``ConvolutionStage``, as for ``parameters`` and ``target``.
        parameters: float32, rounded anew in each step.
        target: float32.
        shape: (B, H, W, in) of the input.
        following: (B, H', W', out) of the output.
    """

    def __init__(
        self,
        layer: nn.Conv2d,
        parameters: Affine,
        target: Affine,
        shape: tuple[int, ...],
        following: tuple[int, ...],
    ) -> None:
        own = half_parameters(parameters)
        super().__init__(layer, own, target, False)
        self._pairs = [
            (half, whole)
            for half, whole in zip(own, parameters, strict=True)
            if half is not None and whole is not None
        ]
        weight, _ = parameters
        self._dx = weight.new_empty(shape)
        self._y = weight.new_empty(following)
        self._half_x = torch.empty_like(self._dx, dtype=HALF)
        self._half_dy = torch.empty_like(self._y, dtype=HALF)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, in) to (B, H', W', out)."""
        for half, whole in self._pairs:
            half.copy_(whole)
        return self._y.copy_(super().forward(self._half_x.copy_(x)))

    def backward(self, dy: Tensor, scale: float, weight_factor: float) -> Tensor | None:
        """(B, H', W', out) to (B, H, W, in)."""
        dx = super().backward(self._half_dy.copy_(dy), scale, weight_factor)
        assert dx is not None
        return self._dx.copy_(dx)


class HalfLinearStage(LinearStage):
    """``LinearStage`` with its products in bfloat16, never the first.

    Args:
        parameters: float32, rounded anew in each step.
        target: float32.
        batch: B.
        out: where to write the output (B, out), or None.
    """

    def __init__(self, parameters: Affine, target: Affine, batch: int, out: Tensor | None) -> None:
        super().__init__(parameters, target, batch, out, False)
        self._half = torch.empty_like(self._matrix, dtype=HALF)
        self._half_x = torch.empty_like(self._x, dtype=HALF)
        self._half_y = torch.empty_like(self._out, dtype=HALF)
        self._half_dx = torch.empty_like(self._dx, dtype=HALF)
        self._half_transposed = self._half[: self._dx.shape[1]].t()
        self._gradient = torch.empty_like(self._half)

    def _product(self) -> None:
        """The output of rounded input and parameters."""
        self._half.copy_(self._matrix)
        torch.mm(self._half_x.copy_(self._x), self._half, out=self._half_y)
        self._out.copy_(self._half_y)

    def _input_gradient(self, dy: Tensor) -> None:
        """The input's gradient, from the rounded one of the output."""
        torch.mm(self._half_y.copy_(dy), self._half_transposed, out=self._half_dx)
        self._dx.copy_(self._half_dx)

    def _move(self, dy: Tensor, scale: float, weight_factor: float) -> None:
        """Move the target by a gradient that was computed in bfloat16, in float32."""
        half_dy = self._half_y  # where ``_input_gradient`` has rounded it
        gradient = torch.mm(self._half_x.t(), half_dy, out=self._gradient)
        move(self._target, gradient, scale, weight_factor)
