"""Model, data, training and test of the plain Flower app; the eager loop and pfl use its models.

The data is a folder of NumPy arrays that ``benchmarks.workloads`` has written: every competitor
trains the same clients on the same examples.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def build_model(name: str, features: int) -> nn.Module:
    """Of ``cnn``, ``cifar`` or ``mlp``, the benchmarks' models.

    ``cnn``: 28×28 images, two 3×3 convolutions of 16 channels. ``cifar``: images of three colours,
    32 and 64 channels, a dense layer of 128. ``mlp``: one hidden layer.
    """
    if name == "cifar":
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 8 * 8, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )
    if name == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * 7 * 7, 10),
        )
    hidden = {784: 256, 64: 64}[features]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 10)
    )


@functools.cache
def arrays(folder: str) -> dict[str, np.ndarray]:
    """The folder's arrays, mapped into memory once per process."""
    return {path.stem: np.load(path, mmap_mode="c") for path in Path(folder).glob("*.npy")}


def client_data(folder: str, client: int) -> tuple[Tensor, Tensor]:
    """One client's images and labels."""
    content = arrays(folder)
    start, stop = content["offsets"][client : client + 2]
    rows = content["rows"][start:stop]
    images, labels = content["train_images"][rows], content["train_labels"][rows]
    return torch.from_numpy(images), torch.from_numpy(labels)


def test_data(folder: str) -> tuple[Tensor, Tensor]:
    """The test set."""
    content = arrays(folder)
    return torch.from_numpy(content["test_images"]), torch.from_numpy(content["test_labels"])


def load_data(folder: str, client: int, batch_size: int) -> DataLoader:
    """One client's batches, shuffled."""
    return DataLoader(TensorDataset(*client_data(folder, client)), batch_size, shuffle=True)


def train(model: nn.Module, batches: DataLoader, epochs: int, learning_rate: float) -> None:
    """Plain SGD."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    model.train()
    for _ in range(epochs):
        for images, labels in batches:
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()


def accuracy(model: nn.Module, folder: str) -> float:
    """Share of the test set that the model gets right."""
    images, labels = test_data(folder)
    model.eval()
    with torch.no_grad():
        parts = zip(images.split(500), labels.split(500), strict=True)
        correct = sum(int((model(x).argmax(1) == y).sum()) for x, y in parts)
    return correct / len(labels)
