"""Convolutions and large linear layers in bfloat16, for ``manual_gradients``.

Only what such a layer multiplies, and what it returns, is rounded to bfloat16, on processors that
compute in it. Between the layers, in all others, and in parameters and their updates, numbers stay
float32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from murmur.learning.kernels.manual_layers import Affine, ConvolutionStage, LinearStage, move
from murmur.learning.kernels.patches import is_strided

HALF = torch.bfloat16
# By PyTorch's names: AVX-512 and AMX on x86, the same of Arm.
_UNITS = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
# Weights of a linear layer; with fewer, rounding takes what the products gain.
_LARGE = 512 * 512


def has_bfloat16() -> bool:
    """Whether this processor multiplies in bfloat16; where it does not, it would be slower."""
    found = torch.cpu.get_capabilities()
    return any(found.get(unit) for unit in _UNITS)


def computes_half(layer: object) -> bool:
    """Whether ``layer`` gains by bfloat16.

    Large linear layers do, and convolutions, but those made of two plain products.
    """
    if isinstance(layer, nn.Linear):
        return layer.weight.numel() >= _LARGE
    return isinstance(layer, nn.Conv2d) and not is_strided(layer)


def half_layer(layer: nn.Linear | nn.Conv2d) -> Callable[[Tensor], Tensor]:
    """``layer`` in inference, with its present parameters."""
    weight, bias = layer.weight.to(HALF), None if layer.bias is None else layer.bias.to(HALF)
    if isinstance(layer, nn.Linear):
        return lambda x: functional.linear(x.to(HALF), weight, bias).float()
    return lambda x: layer._conv_forward(x.to(HALF), weight, bias).float()


class HalfConvolutionStage(ConvolutionStage):
    """``ConvolutionStage`` with bfloat16 inside, never the first.

    Args:
        layer, parameters, target: see ``ConvolutionStage``.
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
        weight, bias = parameters
        given = [weight] if bias is None else [weight, bias]
        own = [torch.empty_like(parameter, dtype=HALF) for parameter in given]
        super().__init__(layer, (own[0], None if bias is None else own[1]), target, False)
        self._pairs = list(zip(own, given, strict=True))
        self._dx, self._y = weight.new_empty(shape), weight.new_empty(following)
        self._half_x = torch.empty_like(self._dx, dtype=HALF)
        self._half_dy = torch.empty_like(self._y, dtype=HALF)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, in) to (B, H', W', out)."""
        for own, parameter in self._pairs:
            own.copy_(parameter)
        return self._y.copy_(super().forward(self._half_x.copy_(x)))

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor | None:
        """(B, H', W', out) to (B, H, W, in)."""
        dx = super().backward(self._half_dy.copy_(dy), scale, retention)
        assert dx is not None
        return self._dx.copy_(dx)


class HalfLinearStage(LinearStage):
    """``LinearStage`` with its products in bfloat16, never the first."""

    def __init__(self, parameters: Affine, target: Affine, batch: int, out: Tensor | None) -> None:
        super().__init__(parameters, target, batch, out, False)
        whole = (self._matrix, self._x, self._out, self._dx)
        halves = [torch.empty_like(tensor, dtype=HALF) for tensor in whole]
        self._half, self._half_x, self._half_y, self._half_dx = halves
        self._half_transposed = self._half[: self._dx.shape[1]].t()
        self._gradient = torch.empty_like(self._half)

    def _product(self) -> None:
        self._half.copy_(self._matrix)
        torch.mm(self._half_x.copy_(self._x), self._half, out=self._half_y)
        self._out.copy_(self._half_y)

    def _input_gradient(self, dy: Tensor) -> None:
        torch.mm(self._half_y.copy_(dy), self._half_transposed, out=self._half_dx)
        self._dx.copy_(self._half_dx)

    def _move(self, dy: Tensor, scale: float, retention: float) -> None:
        half_dy = self._half_y  # where ``_input_gradient`` has rounded it
        gradient = torch.mm(self._half_x.t(), half_dy, out=self._gradient)
        move(self._target, gradient, scale, retention)
