"""PrivateKT as its authors loop it, in plain PyTorch on two threads: one round, their settings.

    python -m benchmarks.competitors.privatekt_authors DATA --clients 40 --rounds 1

Every client in turn copies the global model, trains 5 epochs in batches of 32, labels K=2 public
images and randomises the labels; the server fine-tunes on the buffer in 4 full-buffer steps,
predicts the whole public pool, draws 1,200 images and learns its own soft predictions. Prints one
line of JSON: the seconds of each round and the accuracy after the last.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.competitors.flower_app.plain.task import accuracy, arrays, client_data

EPSILON, LABELS, CLASSES, BUFFER = 5.0, 2, 10, 25
EPOCHS, BATCH, RATE, PASSES, SAMPLES = 5, 32, 0.05, 4, 1200


def build_model() -> nn.Sequential:
    """The authors' network: no activation after the convolutions, dropout 0.2 everywhere."""
    layers: list[nn.Module] = []
    for before, after in ((1, 32), (32, 128)):
        layers += [nn.Conv2d(before, after, 5), nn.MaxPool2d(2), nn.Dropout(0.2)]
    layers.append(nn.Flatten())
    for before, after in ((2048, 512), (512, 512), (512, 512)):
        layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(0.2)]
    layers.append(nn.Linear(512, CLASSES))
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def descend(model: nn.Module, images: Tensor, targets: Tensor, epochs: int, batch: int) -> None:
    """Plain SGD in shuffled batches; targets are classes or distributions."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(batch):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[rows]), targets[rows]).backward()
            optimizer.step()


@torch.no_grad()
def predict(model: nn.Module, images: Tensor) -> Tensor:
    """Probabilities, in batches."""
    model.eval()
    return torch.cat([model(part).softmax(1) for part in images.split(512)])


def draw(probabilities: Tensor, count: int, sign: float) -> np.ndarray:
    """``count`` images with probability proportional to exp(± entropy)."""
    p = probabilities.double().clamp_min(1e-12)
    weights = (sign * -(p * p.log()).sum(1)).softmax(0).numpy()
    return np.random.choice(len(weights), count, replace=False, p=weights / weights.sum())


def randomise(labels: np.ndarray) -> np.ndarray:
    """Keep each label with probability beta, else draw any of the classes (eqs. 2 and 6)."""
    grown = math.expm1(EPSILON / LABELS)
    keep = np.random.random(len(labels)) < grown / (grown + CLASSES)
    return np.where(keep, labels, np.random.randint(0, CLASSES, len(labels)))


def main() -> None:
    """Loop as the authors do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    np.random.seed(0)
    content = arrays(options.data)
    public = torch.from_numpy(content["train_images"][content["public"]])
    model, seconds, score = build_model(), [], 0.0
    buffer: list = []
    for number in range(options.rounds):
        start = time.perf_counter()
        if number == 0:
            chosen = np.random.choice(len(public), LABELS, replace=False)
        else:
            chosen = draw(predict(model, public), LABELS, 1.0)
        votes = np.zeros((LABELS, CLASSES))
        cohort = np.random.choice(len(content["offsets"]) - 1, options.clients, replace=False)
        for client in cohort:
            local = copy.deepcopy(model)
            descend(local, *client_data(options.data, int(client)), EPOCHS, BATCH)
            labels = randomise(predict(local, public[chosen]).argmax(1).numpy())
            votes[np.arange(LABELS), labels] += 1
        buffer = [*buffer, (chosen, votes.argmax(1))][-BUFFER:]
        images = public[np.concatenate([rows for rows, _ in buffer])]
        targets = torch.from_numpy(np.concatenate([labels for _, labels in buffer]))
        descend(model, images, targets, PASSES, len(images))
        soft = predict(model, public)
        sample = draw(soft, SAMPLES, -1.0)
        descend(model, public[sample], soft[sample], 1, BATCH)
        score = accuracy(model, options.data)
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"rounds": seconds, "accuracy": score}))


if __name__ == "__main__":
    main()
