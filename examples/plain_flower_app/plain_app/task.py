"""The model, the data, and a few epochs of each: what every Flower app brings of its own."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TESTED = 297  # of the 1,797 digits; no client has them


class Net(nn.Module):
    """A linear model of 8 x 8 pixels."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, images):
        return self.layer(images)


def digits():
    """scikit-learn's handwritten digits (8 x 8) in one order: images in [0, 1] and labels."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]


def load_data(partition_id, num_partitions, batch_size):
    """A client's own digits: 80% to train on, 20% to evaluate on."""
    images, labels = digits()
    own = slice(TESTED + partition_id, None, num_partitions)
    data = TensorDataset(images[own], labels[own])
    cut = len(data) * 4 // 5
    train = TensorDataset(*data[:cut])
    return (
        DataLoader(train, batch_size=batch_size, shuffle=True),
        DataLoader(TensorDataset(*data[cut:]), batch_size=batch_size),
    )


def load_test_data():
    images, labels = digits()
    return DataLoader(TensorDataset(images[:TESTED], labels[:TESTED]), batch_size=TESTED)


def train(net, loader, epochs, lr):
    """Trains in place; the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    total = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(net, loader):
    """Mean loss, and the share that is right."""
    total = 0.0
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            outputs = net(images)
            total += nn.functional.cross_entropy(outputs, labels, reduction="sum").item()
            right += (outputs.argmax(1) == labels).sum().item()
    return total / len(loader.dataset), right / len(loader.dataset)
