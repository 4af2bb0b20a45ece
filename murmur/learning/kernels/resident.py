"""The images that a process trains on, kept on its device from one client to the next."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from murmur.learning.training.memory import as_tensor


class ResidentImages:
    """Images of ``input_shape`` (C, H, W) as tensors on ``device``; the last ones given stay."""

    def __init__(self, input_shape: tuple[int, int, int], device: torch.device) -> None:
        self.input_shape, self.device = input_shape, device
        self._held: tuple[NDArray[np.float32], Tensor] | None = None

    def check(self, images: NDArray[np.float32]) -> None:
        """ValueError unless ``images`` are float32 (N, C, H, W)."""
        if images.shape[1:] != self.input_shape or images.dtype != np.float32:
            raise ValueError(
                f"images={images.shape} {images.dtype}: must be float32 (N, *{self.input_shape})"
            )

    def tensor(self, images: NDArray[np.float32]) -> Tensor:
        """``images`` on the device: clients share a process's data, so it is moved once."""
        self.check(images)
        if self.device.type == "cpu":
            return as_tensor(images)
        if self._held is None or self._held[0] is not images:
            self._held = images, as_tensor(images).to(self.device)
        return self._held[1]
