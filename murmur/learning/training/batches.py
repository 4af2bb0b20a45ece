"""Shuffled mini-batches out of resident arrays, gathered into buffers that are made once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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


def index_tensor(indices: NDArray[np.integer[Any]] | None, count: int) -> Tensor | None:
    """``indices`` (n,) as int64, checked to lie in [0, ``count``); None stands for all.

    Raises:
        ValueError: an index is out of range, or there is no example at all.
    """
    if (count if indices is None else len(indices)) == 0:
        raise ValueError("images=(): must hold at least one example to train on")
    if indices is None:
        return None
    if indices.min() < 0 or indices.max() >= count:
        raise ValueError(f"indices={indices.min()}..{indices.max()}: must be from 0 to {count - 1}")
    return torch.from_numpy(indices.astype(np.int64))


def target_matrix(
    labels: NDArray[np.int64] | NDArray[np.float32],
    indices: Tensor | None,
    shape: tuple[int, int],
    soft: bool,
) -> Tensor:
    """Labels as distributions, float32 (classes, n), one-hot where they are classes.

    Args:
        labels: integers (N,), or distributions (N, classes) if ``soft``.
        indices: (n,), which of them; all if None.
        shape: (N, classes).
        soft: whether labels are distributions.

    Raises:
        ValueError: labels have another shape or type, name no class or are no distributions.
    """
    expected, kind = (shape, np.floating) if soft else (shape[:1], np.integer)
    if labels.shape != expected or not np.issubdtype(labels.dtype, kind):
        raise ValueError(
            f"labels={labels.dtype}{labels.shape}: must be {kind.__name__} {expected} "
            f"for soft_targets={soft}"
        )
    chosen = labels if indices is None else labels[indices.numpy()]
    if soft:
        if not ((chosen >= 0).all() and np.allclose(chosen.sum(axis=1), 1, atol=1e-3)):
            raise ValueError("labels=soft: every row must be a distribution over the classes")
        return torch.tensor(chosen.T, dtype=torch.float32)
    require_classes(chosen, shape[1])
    one_hot = np.zeros((shape[1], len(chosen)), np.float32)
    one_hot[chosen, np.arange(len(chosen))] = 1
    return torch.from_numpy(one_hot)


def require_classes(labels: NDArray[Any], classes: int) -> None:
    """ValueError unless every one of ``labels`` names one of ``classes``."""
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels={labels.min()}..{labels.max()}: must be from 0 to {classes - 1}")


def count_steps(epochs: int | None, steps: int | None, count: int, batch_size: int) -> int:
    """How many batches of ``batch_size`` to train on, for ``epochs`` over ``count`` examples.

    Raises:
        ValueError: not exactly one of ``epochs`` and ``steps`` is set, or a value is too small.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: must be at least 1")
    if (epochs is None) == (steps is None):
        raise ValueError(f"epochs={epochs}: set either epochs or steps (steps={steps})")
    name, value = ("steps", steps) if epochs is None else ("epochs", epochs)
    if value is None or value < 0:
        raise ValueError(f"{name}={value}: must be at least 0")
    return value if epochs is None else value * -(-count // batch_size)
