"""A backend's gradient of one batch, in the order of the model's own parameters."""

import numpy as np
import torch

from murmur.learning.models import Dropout
from murmur.learning.training.backends import Backend
from murmur.learning.training.parameters import FlatModel


def model_order(backend: Backend, vector: torch.Tensor) -> torch.Tensor:
    """The inverse of ``backend.to_layout``."""
    places = backend.to_layout(torch.arange(len(vector), dtype=torch.float32)).long()
    return torch.empty_like(vector).index_put_((places,), vector)


def gradient(backend: Backend, flat: FlatModel, images: np.ndarray, y: np.ndarray) -> torch.Tensor:
    """(d,) of images (B, C, H, W) and distributions (B, classes), with the same dropout always."""
    same_dropout(flat)
    flat.module.train()
    x = in_room(backend, images)
    with backend.training(np.random.default_rng(0)):
        return model_order(backend, backend.gradient(x, torch.from_numpy(y)).clone())


def in_room(backend: Backend, images: np.ndarray) -> torch.Tensor:
    """A batch as ``backend`` takes it."""
    x, seen = backend.batch_buffer(len(images))
    seen.copy_(torch.from_numpy(images))
    return x


def same_dropout(flat: FlatModel) -> None:
    """Dropout draws the same masks as after the last call."""
    for layer in flat.module.modules():
        if isinstance(layer, Dropout):
            layer.bits = np.random.SFC64(4)


def batch(shape: tuple[int, int, int], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Images whose upper half is constant, so that pooling meets ties; and soft labels."""
    rng = np.random.default_rng(size)
    images = rng.normal(size=(size, *shape)).astype(np.float32)
    images[:, :, : shape[1] // 2] = 0
    return images, rng.dirichlet(np.ones(10), size).astype(np.float32)
