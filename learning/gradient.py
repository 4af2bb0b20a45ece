"""Gradients by PyTorch's autograd, for any module."""

from __future__ import annotations

import torch
from torch import Tensor

from learning.flat import FlatModel


class AutogradBackend:
    """Computes gradients of the mean cross-entropy for whatever module ``flat`` holds."""

    def __init__(self, flat: FlatModel) -> None:
        self._flat = flat

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """The flat gradient (d,) of the mean cross-entropy of a batch.

        Args:
            x: float32 (B, C, H, W).
            y: float32 (B, classes), the target distributions.
        """
        gradient = self._flat.gradient.zero_()
        with torch.enable_grad():
            logits = self._flat.module(x)
        # The loss's own value is not needed, and its gradient is softmax − target.
        residual = torch.softmax(logits.detach(), dim=1).sub_(y).div_(len(x))
        logits.backward(residual)
        return gradient

    def descend(self, x: Tensor, y: Tensor, lr: float, retention: float) -> None:
        """One plain step: w ← retention·w − lr·g."""
        gradient = self.gradient(x, y)
        if retention != 1:
            self._flat.vector.mul_(retention)
        self._flat.vector.sub_(gradient, alpha=lr)
