"""Convolutions in bfloat16, for ``manual_gradients``, on processors that compute in it.

Only what a convolution multiplies is rounded to bfloat16, and what it and its pooling return.
Parameters, their updates and all other layers stay float32.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from learning.training.manual_layers import Affine, ConvolutionStage, Stage
from learning.training.patches import is_strided

HALF = torch.bfloat16
# By PyTorch's names: AVX-512 and AMX on x86, the same of Arm.
_UNITS = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")


def has_bfloat16() -> bool:
    """Whether this processor multiplies in bfloat16; where it does not, it would be slower."""
    found = torch.cpu.get_capabilities()
    return any(found.get(unit) for unit in _UNITS)


def computes_half(layer: object) -> bool:
    """Whether ``layer`` gains by bfloat16: convolutions, but those made of two plain products."""
    return isinstance(layer, nn.Conv2d) and not is_strided(layer)


class HalfConvolutionStage(ConvolutionStage):
    """``ConvolutionStage`` with bfloat16 inside: float32 in, bfloat16 out; ``WidenStage`` follows.

    Args:
        layer, parameters, target: see ``ConvolutionStage``.
        shape: (B, H, W, in) of the input.
    """

    def __init__(
        self, layer: nn.Conv2d, parameters: Affine, target: Affine, shape: tuple[int, ...]
    ) -> None:
        weight, bias = parameters
        given = [weight] if bias is None else [weight, bias]
        own = [torch.empty_like(parameter, dtype=HALF) for parameter in given]
        super().__init__(layer, (own[0], None if bias is None else own[1]), target, False)
        self._pairs = list(zip(own, given, strict=True))
        self._half = weight.new_empty(shape, dtype=HALF)
        self._dx = weight.new_empty(shape)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, in) in float32 to (B, H', W', out) in bfloat16."""
        for own, parameter in self._pairs:
            own.copy_(parameter)
        return super().forward(self._half.copy_(x))

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor | None:
        """(B, H', W', out) in bfloat16 to (B, H, W, in) in float32."""
        dx = super().backward(dy, scale, retention)
        assert dx is not None
        return self._dx.copy_(dx)


class WidenStage(Stage):
    """Bfloat16 to float32, and the gradient back; (B, H, W, C) of ``shape``."""

    def __init__(self, like: Tensor, shape: tuple[int, ...], out: Tensor | None) -> None:
        self._out = like.new_empty(shape) if out is None else out
        self._dx = like.new_empty(shape, dtype=HALF)

    def forward(self, x: Tensor) -> Tensor:
        """X in float32."""
        return self._out.copy_(x)

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor | None:
        """Dy in bfloat16."""
        return self._dx.copy_(dy)
