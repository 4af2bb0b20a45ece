"""Shuffled mini-batches out of resident arrays, gathered into buffers that are made once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

# Examples gathered at a time: enough to spread the cost of a gather over many small steps, few
# enough to stay in cache and to bound memory whatever the size of a data set.
_GATHERED = 2048


class BatchLoader:
    """Serves batches as rows: each image flattened with its channels last.

    Args:
        input_shape: (channels, height, width).
        ones: whether each row ends in a 1, for models that keep a bias as a row of a matrix.
        device: where the batches go.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        ones: bool,
        device: torch.device,
    ) -> None:
        self._input_shape = input_shape
        self._ones = ones
        self._device = device
        self._allocate(0)

    def batches(
        self,
        images: Tensor,
        targets: Tensor,
        indices: Tensor | None,
        *,
        size: int,
        steps: int,
        rng: np.random.Generator,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ``steps`` batches, in a fresh order for every pass over the examples.

        Args:
            images: (N, C, H, W), on the device.
            targets: (num_classes, n), on the device.
            indices: (n,), which of the images the targets belong to; all of them if None.
            size: examples per batch; the last batch of a pass may be smaller.
            steps: how many batches, over as many passes as that takes.
            rng: draws the orders.

        Yields:
            Rows (B, H*W*C), with the column of ones if asked for, overwritten later; and targets
            (num_classes, B).
        """
        count = targets.shape[1]
        one_pass = [size] * (count // size) + [count % size] * (count % size > 0)
        # A gather holds whole passes, or a part of one where the examples are many.
        passes = max(1, _GATHERED // count)
        at_once = len(one_pass) * passes if count <= _GATHERED else max(1, _GATHERED // size)
        while steps > 0:
            sizes = (one_pass * passes)[:steps]
            steps -= len(sizes)
            drawn = -(-len(sizes) // len(one_pass))
            orders = [torch.from_numpy(rng.permutation(count)) for _ in range(drawn)]
            order = torch.cat(orders).to(self._device)
            start = 0
            for first in range(0, len(sizes), at_once):
                group = sizes[first : first + at_once]
                part = order[start : start + sum(group)]
                start += len(part)
                chosen = part if indices is None else indices[part]
                self._reserve(len(part))
                torch.index_select(images, 0, chosen, out=self._images[: len(part)])
                rows = self._rows[: len(part)].split(group)
                yield from zip(rows, targets[:, part].split(group, dim=1), strict=True)

    def _reserve(self, count: int) -> None:
        """Make room for ``count`` examples."""
        if count > len(self._rows):
            self._allocate(count)

    def _allocate(self, count: int) -> None:
        channels, height, width = self._input_shape
        features = channels * height * width
        self._rows = torch.ones(count, features + self._ones, device=self._device)
        channels_last = self._rows[:, :features].view(count, height, width, channels)
        self._images = channels_last.permute(0, 3, 1, 2)
