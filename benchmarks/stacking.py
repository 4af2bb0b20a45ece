"""Clients trained as one stack against one after the other: ``python -m benchmarks.stacking``.

    python -m benchmarks.stacking [--device cuda] [--clients 100] [--stacks 1 8 64] [--repeats 5]

The comparisons' CNN and MLP: 600 examples a client, one epoch, in batches of 64 and 32. Needs
PyTorch and NumPy alone, so that it runs where Flower is not installed. Prints Markdown: medians,
the sides taking turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe_machine
from murmur.learning import models
from murmur.learning.process import keep_heap, take_over
from murmur.learning.training.stack import ClientBatch
from murmur.learning.training.trainer import Trainer

SHAPE, CLASSES, EXAMPLES = (1, 28, 28), 10, 600
MODELS: dict[str, tuple[Callable, int]] = {
    "CNN 1→16→16, batches of 64": (models.cnn_16, 64),
    "MLP 784–256–10, batches of 32": (partial(models.mlp, hidden=[256]), 32),
}


def main() -> None:
    """One row for each model and way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--stacks", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    take_over()
    keep_heap()
    where = torch.cuda.get_device_name() if options.device == "cuda" else "one thread"
    print(f"{describe_machine('torch')}; {where}; {options.clients} clients\n")
    print("| model | way | s, median | against one by one |\n|---|---|---|---|")
    for name, (model, batch) in MODELS.items():
        ways = _ways(model, batch, options)
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for repeat in range(options.repeats + 1):
            for way, train in ways.items():
                start = time.perf_counter()
                train()
                if options.device == "cuda":
                    torch.cuda.synchronize()
                if repeat:  # the first one builds buffers and chooses kernels
                    spent[way].append(time.perf_counter() - start)
        medians = {way: statistics.median(seconds) for way, seconds in spent.items()}
        for way, median in medians.items():
            print(f"| {name} | {way} | {median:.3f} | {medians['one by one'] / median:.2f}× |")


def _ways(
    model: Callable, batch: int, options: argparse.Namespace
) -> dict[str, Callable[[], object]]:
    rng = np.random.default_rng(0)
    count = EXAMPLES * options.clients
    images = rng.random((count, *SHAPE), dtype=np.float32)
    labels = rng.integers(0, CLASSES, count)
    rows = np.split(rng.permutation(count), options.clients)
    how: dict[str, Any] = {"epochs": 1, "batch_size": batch, "lr": 0.1}

    def alone(trainer: Trainer, start: np.ndarray) -> None:
        for client, own in enumerate(rows):
            trainer.load(start)
            stream = np.random.default_rng(client)
            trainer.train(images, labels, indices=own, rng=stream, **how)
            trainer.parameters()

    def stacked(trainer: Trainer, start: np.ndarray, size: int) -> None:
        assert trainer.stack is not None
        for first in range(0, len(rows), size):
            shares = [
                ClientBatch(start, own, np.random.default_rng(first + k))
                for k, own in enumerate(rows[first : first + size])
            ]
            trainer.stack.train(images, labels, shares, **how)

    ways: dict[str, Callable[[], object]] = {}
    for mixed in (False, True):
        trainer = Trainer(model, SHAPE, CLASSES, device=options.device, mixed_precision=mixed)
        start = trainer.initial(np.random.default_rng(0))
        if not mixed:
            ways["one by one"] = partial(alone, trainer, start)
        for size in options.stacks:
            label = f"stacks of {size}" + (", mixed precision" if mixed else "")
            ways[label] = partial(stacked, trainer, start, size)
    return ways


if __name__ == "__main__":
    main()
