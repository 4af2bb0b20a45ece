"""What trains a model: the protocol, and the general way, PyTorch's autograd."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from murmur.learning.kernels.flat import FlatModel
from murmur.learning.training.optimiser import Optimisation


class Backend(ABC):
    """How ``training.trainer.Trainer`` moves a model; a module may bring its own as ``backend``.

    Args:
        flat: the model.
        input_shape: (channels, height, width).

    Attributes:
        wants_ones: whether rows of examples must end in a column of ones.
        guard: makes the context of one call of ``Trainer.train``.
    """

    wants_ones: bool = False
    guard: Callable[[], AbstractContextManager[object]] = torch.no_grad

    @abstractmethod
    def __init__(self, flat: FlatModel, input_shape: tuple[int, int, int]) -> None:
        self._flat = flat

    @abstractmethod
    def gradient(self, rows: Tensor, y: Tensor) -> Tensor:
        """The flat gradient (d,) of the mean cross-entropy of a batch, valid until the next call.

        Args:
            rows: float32 (B, H*W*C), images with their channels last.
            y: float32 (classes, B), the target distributions.
        """

    @abstractmethod
    def descend(self, rows: Tensor, y: Tensor, lr: float, retention: float) -> None:
        """One plain step: w ← retention·w - lr·gradient."""

    def reader(self, batch: int) -> Callable[[Tensor], Tensor]:
        """What computes logits of ``batch`` images (B, C, H, W), channels-last, in inference mode.

        For one thread, and for the parameters as they are now.
        """
        return self._flat.module

    def after_step(self, how: Optimisation) -> None:  # noqa: B027
        """Whatever a model needs after each step, of either kind. Nothing by default."""


class AutogradBackend(Backend):
    """Works for any module."""

    def __init__(self, flat: FlatModel, input_shape: tuple[int, int, int]) -> None:
        super().__init__(flat, input_shape)
        channels, height, width = input_shape
        self._shape = (-1, height, width, channels)

    def gradient(self, rows: Tensor, y: Tensor) -> Tensor:
        """See ``Backend``."""
        gradient = self._flat.gradient.zero_()
        with torch.enable_grad():
            logits = self._flat.module(rows.view(self._shape).permute(0, 3, 1, 2))
        # The loss's own value is not needed, and its gradient is softmax - target.
        logits.backward(torch.softmax(logits.detach(), dim=1).sub_(y.t()).div_(len(rows)))
        return gradient

    def descend(self, rows: Tensor, y: Tensor, lr: float, retention: float) -> None:
        """See ``Backend``."""
        gradient = self.gradient(rows, y)
        if retention != 1:
            self._flat.vector.mul_(retention)
        self._flat.vector.sub_(gradient, alpha=lr)
