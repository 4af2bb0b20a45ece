"""The layers of binary networks, as modules: the reference, and what inference runs.

Hubara et al., "Binarized Neural Networks", NeurIPS 2016: W^b = sign(W̄) with 0 → +1; gradients pass
the sign unchanged (straight-through).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def sign(x: Tensor, out: Tensor | None = None) -> Tensor:
    """±1 with 0 → +1, where PyTorch's own sign gives 0; into ``out`` if given, without a copy."""
    out = torch.sign(x) if out is None else torch.sign(x, out=out)
    return torch.sign(out.add_(0.5), out=out)


class _StraightThrough(torch.autograd.Function):
    """``sign`` forwards, the identity backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return sign(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # type: ignore[override]
        return dy


def _binary(x: Tensor) -> Tensor:
    return _StraightThrough.apply(x)  # type: ignore[no-untyped-call]


class BinaryConv2d(nn.Conv2d):
    """A convolution that computes with the signs of its weights."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, in, H, W) to (N, out, H', W')."""
        return self._conv_forward(x, _binary(self.weight), None)


class BinaryLinear(nn.Linear):
    """A dense layer that computes with the signs of its weights, and of its biases if any."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, in) to (N, out)."""
        bias = None if self.bias is None else _binary(self.bias)
        return F.linear(x, _binary(self.weight), bias)


class Sign(nn.Module):
    """The signs of activations that lie in (−1, 1), as tanh's do."""

    def forward(self, x: Tensor) -> Tensor:
        """±1 in the shape of ``x``."""
        return _binary(x)


class Scale(nn.Module):
    """Times a constant: takes the place of normalisation where there is none."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """``x`` · factor."""
        return x * self.factor


class BatchNorm(nn.Module):
    """Batch normalisation (Ioffe & Szegedy, ICML 2015) all of whose numbers are buffers.

    So neither its statistics nor its scale and shift belong to the parameters that are shared:
    sent without noise they would tell of the data. ``dpfl_bnn.manual_gradients`` trains them.

    Args:
        channels: C of (N, C, ...).
    """

    momentum = 0.1
    eps = 1e-5

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def initialise(self, rng: np.random.Generator) -> None:
        """Scale 1, shift 0, fresh statistics; draws nothing."""
        for buffer, value in zip(self.buffers(), (1.0, 0.0, 0.0, 1.0), strict=True):
            buffer.fill_(value)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the batch in training, by the running statistics otherwise.

        One value per channel has no variance; then by the running statistics, too.
        """
        return F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training and x.numel() > self.channels,
            self.momentum,
            self.eps,
        )
