"""Local training against a plain PyTorch loop.

    python -m benchmarks.training [--models NAME ...] [--inductor]

Same model, same data in memory, same batch sizes, one thread each. The plain loop is what anybody
writes: shuffled indices, ``cross_entropy``, ``backward``, ``torch.optim.SGD``, no ``DataLoader``.
Against it ``Trainer`` as it is without extras, and with ``compute.fused``, and with bfloat16 where
model and processor can. ``--inductor`` adds the plain loop by ``torch.compile``, which needs a C++
compiler. Each lives in a process of its own, since the heap's settings concern a whole process, and
they take turns; a figure is the median of the processor's time over the repeats. Prints Markdown.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.machine import describe_machine
from murmur.learning import models
from murmur.learning.models import Dropout
from murmur.learning.process import keep_heap, take_over
from murmur.learning.training.backends import Precision
from murmur.learning.training.trainer import Trainer

MNIST = (1, 28, 28)


@dataclass(frozen=True)
class Case:
    """One client's training.

    Attributes:
        model: factory of ``murmur.learning.models``.
        input_shape: (channels, height, width).
        examples: how many the client has.
        batch_size: examples per step.
        epochs: passes per repeat.
        settings: of the model.
    """

    model: str
    input_shape: tuple[int, int, int]
    examples: int
    batch_size: int
    epochs: int
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Steps per repeat."""
        return self.epochs * -(-self.examples // self.batch_size)

    def build(self) -> Callable[..., nn.Module]:
        """The model's factory with its settings."""
        return partial(getattr(models, self.model), **self.settings)

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Images with MNIST's share of empty pixels, and labels."""
        rng = np.random.default_rng(0)
        images = rng.random((self.examples, *self.input_shape), dtype=np.float32)
        images *= rng.random(self.input_shape) < 0.2
        return images, rng.integers(0, 10, self.examples)


CASES = {
    "MLP 64-64-10": Case("mlp", (1, 8, 8), 320, 16, 20),
    "MLP 784-128-10": Case("mlp", MNIST, 600, 32, 5, {"hidden": [128]}),
    "MLP 784-256-10": Case("mlp", MNIST, 600, 32, 5, {"hidden": [256]}),
    "cnn_small": Case("cnn_small", MNIST, 600, 32, 3),
    "cnn_small, pooled": Case("cnn_small", MNIST, 600, 32, 3, {"downsample": "pool"}),
    "cnn_16": Case("cnn_16", MNIST, 640, 64, 4),
    "cnn_tanh": Case("cnn_tanh", MNIST, 500, 50, 4),
    "cnn_privatekt": Case("cnn_privatekt", MNIST, 600, 32, 1),
}


def plain(case: Case, compiled: bool = False) -> Callable[[], object]:
    """The loop that anybody writes, with PyTorch's own layers in their usual order.

    Args:
        case: what to train.
        compiled: by ``torch.compile``.
    """
    layers = list(case.build()(case.input_shape, 10).children())
    for index, layer in enumerate(layers):
        if isinstance(layer, Dropout):
            layers[index] = nn.Dropout(layer.p)
        elif isinstance(layer, nn.ReLU | nn.Tanh) and isinstance(layers[index - 1], nn.MaxPool2d):
            layers[index - 1], layers[index] = layers[index], layers[index - 1]
        elif isinstance(layer, models.Flatten):
            layers[index] = nn.Flatten()
    module = nn.Sequential(*layers)
    if compiled:
        module.compile()
    optimiser = torch.optim.SGD(module.parameters(), lr=1e-3)
    images, labels = (torch.from_numpy(array) for array in case.data())

    def run() -> None:
        for _ in range(case.epochs):
            for batch in torch.randperm(case.examples).split(case.batch_size):
                optimiser.zero_grad()
                functional.cross_entropy(module(images[batch]), labels[batch]).backward()
                optimiser.step()

    return run


def ours(case: Case, fused: bool = False, precision: Precision = "fp32") -> Callable[[], object]:
    """A client's call of the Trainer: load, train, take the parameters."""
    take_over()
    keep_heap()
    trainer = Trainer(case.build(), case.input_shape, 10, fused=fused, precision=precision)
    rng = np.random.default_rng(0)
    start = trainer.initial(rng)
    images, labels = case.data()

    def run() -> object:
        trainer.load(start)
        trainer.train(
            images, labels, rng=rng, epochs=case.epochs, batch_size=case.batch_size, lr=1e-3
        )
        return trainer.parameters()

    return run


COMPETITORS: dict[str, Callable[[Case], Callable[[], object]]] = {
    "plain": plain,
    "Trainer": ours,
    "fused": partial(ours, fused=True),
    "fused, bf16": partial(ours, fused=True, precision="auto"),
    "torch.compile": partial(plain, compiled=True),
}
USUAL = [name for name in COMPETITORS if name != "torch.compile"]


def serve(name: str, connection: Connection) -> None:
    """A competitor's process: a case in, seconds out; None ends it."""
    torch.set_num_threads(1)
    prepared: dict[str, Callable[[], object]] = {}
    while (key := connection.recv()) is not None:
        if key not in prepared:
            prepared[key] = COMPETITORS[name](CASES[key])
            prepared[key]()
        start = time.process_time()
        prepared[key]()
        connection.send(time.process_time() - start)


def measure(
    names: list[str], repeats: int, competitors: Sequence[str] = USUAL
) -> dict[str, dict[str, float]]:
    """Median milliseconds per step, by case and competitor."""
    context = multiprocessing.get_context("spawn")
    ends: dict[str, Connection] = {}
    workers = []
    for competitor in competitors:
        ends[competitor], theirs = context.Pipe()
        workers.append(context.Process(target=serve, args=(competitor, theirs), daemon=True))
        workers[-1].start()
    result: dict[str, dict[str, float]] = {}
    for name in names:
        seconds: dict[str, list[float]] = {competitor: [] for competitor in competitors}
        for _ in range(repeats):
            for competitor, end in ends.items():
                end.send(name)
                seconds[competitor].append(end.recv())
        result[name] = {
            competitor: 1e3 * statistics.median(times) / CASES[name].steps
            for competitor, times in seconds.items()
        }
    for end, worker in zip(ends.values(), workers, strict=True):
        end.send(None)
        worker.join()
    return result


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--inductor", action="store_true", help="torch.compile, too")
    arguments = parser.parse_args()
    sides = list(COMPETITORS) if arguments.inductor else USUAL
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"{describe_machine('torch')}; {capability}; one thread\n")
    heads = [f"{name}, ms per step" for name in sides]
    print(f"| model | batch | {' | '.join(heads)} | plain / fused, bf16 |")
    print("|---" * (len(heads) + 3) + "|")
    for name, times in measure(arguments.models, arguments.repeats, sides).items():
        figures = " | ".join(f"{times[side]:.3f}" for side in sides)
        gain = times["plain"] / times["fused, bf16"]
        print(f"| {name} | {CASES[name].batch_size} | {figures} | {gain:.1f}x |")


if __name__ == "__main__":
    main()
