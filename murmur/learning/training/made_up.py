"""A step of training on made-up images, which leaves the model as it was.

The images are nobody's: the same for every data set of their shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from murmur.learning.training.parameters import FlatModel


class Trainable(Protocol):
    """A ``Trainer``, as far as a step needs it."""

    input_shape: tuple[int, int, int]
    num_classes: int
    flat: FlatModel

    @property
    def train(self) -> Callable[..., NDArray[np.float32]]:
        """``Trainer.train``."""


_TOKENS = 3  # what models of texts read: the fewest that a vocabulary has


def changed_buffers(trainer: Trainable) -> list[str]:
    """Names of the buffers that a step of training changes: statistics, and no constants.

    Raises:
        ValueError: the model cannot take that step.
    """
    module = trainer.flat.module
    if not any(True for _ in module.buffers()):
        return []
    with unchanged(trainer) as before:
        train_once(trainer, *made_up(trainer, 2), type(module).__name__)
        return [
            name
            for name, buffer in module.named_buffers()
            if name not in before or not same_bits(buffer, before[name])
        ]


def made_up(trainer: Trainable, count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Images (count, C, H, W) in [0, 1), or whole numbers for models of texts; and soft labels.

    Nobody's: the same for every data set of this shape.
    """
    rng = np.random.default_rng(0)
    images = rng.random((count, *trainer.input_shape), np.float32)
    layers = trainer.flat.module.modules()
    if any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in layers):
        images = np.floor(_TOKENS * images)
    labels = rng.random((count, trainer.num_classes), np.float32)
    return images, labels / labels.sum(axis=1, keepdims=True)


@contextmanager
def unchanged(trainer: Trainable) -> Iterator[dict[str, Tensor]]:
    """Leave parameters and buffers as they were, which is what it gives."""
    before = {name: tensor.clone() for name, tensor in tensors_of(trainer.flat.module).items()}
    try:
        yield before
    finally:
        for name, tensor in tensors_of(trainer.flat.module).items():
            if name in before:
                tensor.copy_(before[name])


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, of whatever kind."""
    tensors = {name: parameter.detach() for name, parameter in module.named_parameters()}
    return tensors | dict(module.named_buffers())


def train_once(trainer: Trainable, images: NDArray, labels: NDArray, kind: str) -> None:
    """One step of training, with whatever the model raises turned into a ValueError."""
    rng = np.random.default_rng(0)
    how = {"batch_size": len(images), "lr": 1e-3, "steps": 1, "soft_targets": True}
    try:
        trainer.train(images, labels, rng=rng, **how)
    except Exception as error:  # whatever a user's own layers raise
        raise ValueError(f"model={kind}: fails in a step of training ({named(error)})") from error


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Bit by bit where there are no NaNs, which count as equal."""
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def named(error: Exception) -> str:
    """An exception's kind and text."""
    return f"{type(error).__name__}: {error}"
