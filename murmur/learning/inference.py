"""A model's outputs for many images, batch by batch, over several threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from murmur.learning.training.batches import as_tensor

Reader = Callable[[Tensor], Tensor]
"""Images (B, C, H, W), channels-last, to logits (B, num_classes)."""


@dataclass(frozen=True)
class Inference:
    """Reads ``module`` in inference mode; the results do not depend on the number of threads.

    Attributes:
        module: the model.
        reading: gives what makes, for the parameters of now, what computes the model for B images
            at a time, in one thread.
        num_classes: number of logits.
        device: where the module lives.
        threads: CPU threads of PyTorch for each batch.
        readers: how many batches are computed at a time; one on a GPU.
    """

    module: nn.Module
    reading: Callable[[], Callable[[int], Reader]]
    num_classes: int
    device: torch.device
    threads: int
    readers: int

    def logits(self, images: NDArray[np.float32], batch_size: int) -> NDArray[np.float32]:
        """Outputs (N, num_classes) for images (N, C, H, W), ``batch_size`` at a time.

        The module's parameters must stay as they are meanwhile. Memory beside the result is one
        batch for each reader.

        Raises:
            ValueError: ``batch_size`` is below 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be at least 1")
        self.module.eval()
        with torch.inference_mode():
            make = self.reading()
        source = as_tensor(images)
        result = torch.empty(len(images), self.num_classes)
        starts = range(0, len(images), batch_size)
        readers = min(self.readers, len(starts))
        if readers < 2 or self.device.type != "cpu":
            self._read(make, source, result, starts, batch_size)
            return result.numpy()
        # PyTorch keeps the number of threads for each thread that calls it.
        limit = (torch.set_num_threads, (self.threads,))
        with ThreadPoolExecutor(readers, "inference", *limit) as pool:
            shares = [starts[first::readers] for first in range(readers)]
            list(pool.map(lambda own: self._read(make, source, result, own, batch_size), shares))
        return result.numpy()

    def _read(
        self,
        make: Callable[[int], Reader],
        source: Tensor,
        result: Tensor,
        starts: range,
        batch_size: int,
    ) -> None:
        """Fill the rows of ``result`` that begin at ``starts``."""
        count, channels, height, width = source.shape
        # A copy, channels-last and aligned: results must not depend on the caller's memory.
        room = (min(batch_size, count), height, width, channels)
        buffer = torch.empty(room, device=self.device)
        with torch.inference_mode():
            reader = lru_cache(make)
            for start in starts:
                part = source[start : start + batch_size]
                batch = buffer[: len(part)].permute(0, 3, 1, 2).copy_(part)
                result[start : start + batch_size] = reader(len(part))(batch)
