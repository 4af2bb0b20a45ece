"""A model, a data set, a partition, a score and an algorithm of one's own, for `--config-dir`."""

import numpy as np
import torch
from torch import nn

from clients.fedavg import FedAvgClient
from murmur.learning.data.datasets import Dataset, Examples
from strategies.fedavg import FedAvg


class HerNet(nn.Module):
    """An LSTM that reads an image row by row."""

    def __init__(self, input_shape, num_classes, *, width=24, dropout=0.1):
        super().__init__()
        self.rows = nn.LSTM(input_shape[0] * input_shape[2], width, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, num_classes)

    def forward(self, images):
        """Logits (N, num_classes) of images (N, C, H, W)."""
        states, _ = self.rows(images.permute(0, 2, 1, 3).flatten(2))
        return self.head(self.dropout(torch.relu(states[:, -1])))


def stripes(*, size: int = 8, count: int = 600, seed: int = 0) -> Dataset:
    """Images with horizontal, vertical or no stripes, and noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    images = rng.random((count, 1, size, size), dtype=np.float32) / 2
    images[labels == 0, :, ::2] += 0.5
    images[labels == 1, :, :, ::2] += 0.5
    train, test = slice(0, count * 3 // 4), slice(count * 3 // 4, count)
    parts = (Examples(images[part], labels[part]) for part in (train, test))
    return Dataset("stripes", *parts, 3, (1, size, size))


class Blocks:
    """Each client gets consecutive examples."""

    def __call__(self, labels, num_clients, num_classes, rng):
        """See ``murmur.learning.data.partitions.Partition``."""
        return np.array_split(np.arange(len(labels)), num_clients)


def worst_class(logits, labels, *, least=1):
    """Accuracy of the worst class of at least ``least`` examples: (N, classes), (N,) -> number."""
    right = logits.argmax(axis=1) == labels
    found = [right[labels == name] for name in np.unique(labels)]
    return min(part.mean() for part in found if len(part) >= least)


class Damped(FedAvg):
    """Federated averaging that goes a part of the way."""

    def __init__(self, setup, *, damping: float, **averaging):
        super().__init__(setup, **averaging)
        self.damping = damping

    def update(self, number, model, total, weight):
        """The model between the old one and that of FedAvg."""
        new = super().update(number, model, total, weight)
        return (model + self.damping * (new - model)).astype(np.float32)


class DampedClient(FedAvgClient):
    """As in FedAvg."""
