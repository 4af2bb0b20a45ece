"""Gradients by PyTorch's autograd, for any module."""

from __future__ import annotations

import torch
from torch import Tensor

from learning.flat import FlatModel


class AutogradBackend:
    """Gradients of the mean cross-entropy, and plain descent along them.

    Args:
        flat: the model.
        input_shape: (channels, height, width).

    Attributes:
        wants_ones: whether rows of examples must end in a column of ones.
        guard: the context in which to call the methods.
    """

    wants_ones = False
    guard = torch.no_grad

    def __init__(self, flat: FlatModel, input_shape: tuple[int, int, int]) -> None:
        channels, height, width = input_shape
        self._flat = flat
        self._shape = (-1, height, width, channels)

    def gradient(self, rows: Tensor, y: Tensor) -> Tensor:
        """The flat gradient (d,) of the mean cross-entropy of a batch, valid until the next call.

        Args:
            rows: float32 (B, H*W*C), images with their channels last.
            y: float32 (classes, B), the target distributions.
        """
        gradient = self._flat.gradient.zero_()
        with torch.enable_grad():
            logits = self._flat.module(rows.view(self._shape).permute(0, 3, 1, 2))
        # The loss's own value is not needed, and its gradient is softmax - target.
        logits.backward(torch.softmax(logits.detach(), dim=1).sub_(y.t()).div_(len(rows)))
        return gradient

    def descend(self, rows: Tensor, y: Tensor, lr: float, retention: float) -> None:
        """One plain step: w ← retention·w - lr·g."""
        gradient = self.gradient(rows, y)
        if retention != 1:
            self._flat.vector.mul_(retention)
        self._flat.vector.sub_(gradient, alpha=lr)
