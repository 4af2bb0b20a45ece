"""Layers that PyTorch lacks: dropout with a stream of its own, a free flatten, quick pooling."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

_LEVELS = 2**16


class Dropout(nn.Module):
    """Inverted dropout (Srivastava et al., JMLR 2014) that never touches a global generator.

    Set ``bits`` before training; ``Trainer`` does so in every call. A unit is kept
    when 16 fresh random bits are below ``round((1 - p) * 2**16)``, and kept units are scaled by
    exactly the inverse of that probability, so that expectations are exact whatever ``p`` is.
    Drawing 16 bits takes a tenth of the time of PyTorch's Bernoulli draws.

    Args:
        p: probability that a unit is dropped, in [0, 1).

    Attributes:
        bits: 64-bit generator of the masks.

    Raises:
        ValueError: ``p`` is outside its range.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout={p}: must be at least 0 and below 1")
        self.p = p
        self._threshold = max(1, round((1 - p) * _LEVELS))
        self._scale = _LEVELS / self._threshold
        self.bits: np.random.SFC64 | None = None

    def draw(self, out: Tensor) -> Tensor:
        """Fill ``out`` (float32, contiguous): 0 for dropped units, the scale for kept ones."""
        if self.bits is None:
            raise RuntimeError("Dropout.bits is not set: dropout in training needs a generator")
        drawn = self.bits.random_raw(-(-out.numel() // 4)).view(np.uint16)[: out.numel()]
        kept = (drawn < self._threshold).reshape(out.shape)
        if out.is_cpu:
            np.multiply(kept, np.float32(self._scale), out=out.numpy())
            return out
        return out.copy_(torch.from_numpy(kept)).mul_(self._scale)

    def forward(self, x: Tensor) -> Tensor:
        """Drop units of ``x`` in training mode; return it unchanged otherwise."""
        if not self.training or self.p == 0:
            return x
        # Drawn in memory order, so that the mask does not depend on who runs the layer.
        images = x.dim() == 4
        shape = x.permute(0, 2, 3, 1).shape if images else x.shape
        mask = self.draw(torch.empty(shape, device=x.device))
        return x * (mask.permute(0, 3, 1, 2) if images else mask)

    def extra_repr(self) -> str:
        """The drop probability, for ``repr``."""
        return f"p={self.p}"


class HalvingPool(nn.MaxPool2d):
    """Maximum over 2×2 windows; without a gradient to come, by comparing neighbours.

    PyTorch's kernel computes the place of every maximum, too, which takes four times as long.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C, H // 2, W // 2)."""
        if torch.is_grad_enabled():
            return super().forward(x)
        height, width = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
        x = x[:, :, :height, :width].permute(0, 2, 3, 1)  # channels-last, as activations are kept
        rows = torch.maximum(x[:, :, 0::2], x[:, :, 1::2])
        return torch.maximum(rows[:, 0::2], rows[:, 1::2]).permute(0, 3, 1, 2)


class Flatten(nn.Module):
    """(N, C, H, W) to (N, H*W*C), channels fastest, as TensorFlow orders it.

    Activations are kept channels-last, so this order is a view where PyTorch's (channels slowest)
    would be a copy in either direction. For one channel the two orders are the same.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the flattened view."""
        return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1)
