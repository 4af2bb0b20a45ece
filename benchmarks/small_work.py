"""Work that should be done in a moment, and what tiny clients gain by training in lockstep.

    python -m benchmarks.small_work

Tests cannot hold these: seconds depend on the machine, and whether tiny clients train in lockstep
at all on whether its library has the same bits for many products as for one. Prints Markdown.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine
from murmur.learning.metrics import CLUSTERINGS, clustering_score
from murmur.learning.models import mlp
from murmur.learning.training.stack import ClientBatch
from murmur.learning.training.trainer import Trainer
from murmur.privacy.accounting import Threat, elementary_losses, epsilon, privacy_loss
from murmur.privacy.events import (
    Adjacency,
    ComposedEvent,
    Hiding,
    RandomizedBitsEvent,
    RandomizedResponseEvent,
    Release,
    RepeatedEvent,
    SummedEvent,
    Unit,
)
from murmur_kernels.lockstep import WIDTH

DELTA = 1e-5
TINY_CLIENTS = 8 * WIDTH
_PAGES = """
import resource
import murmur.learning
import torch
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def measure() -> dict[str, float]:
    """Seconds of processor for each piece of work; for ``lockstep`` how many times as fast.

    ``pages``: how many were found for a tensor of 64 MiB, of 16,384 if they have 4 KiB each.
    """
    found = {name: _seconds(work) for name, work in WORK.items()}
    pages = subprocess.run(
        [sys.executable, "-c", _PAGES], capture_output=True, text=True, check=True
    )
    return {**found, "pages": float(pages.stdout), "lockstep": lockstep()}


def _labels(repeat: int) -> None:
    one = elementary_losses.label_loss(2.5, 10, 20_000 + repeat)
    privacy_loss.epsilon([one], DELTA)


def _ledger(repeat: int) -> None:
    rows = range(repeat, repeat + 300)
    released = [RandomizedResponseEvent(0.2 + 0.001 * math.sqrt(i), 10) for i in rows]
    epsilon(ComposedEvent(tuple(released)), DELTA)


def _later_round(repeat: int) -> None:
    bits = RandomizedBitsEvent(0.1, 81_958, 200)
    release = Release(bits, Unit.CLIENT, Adjacency.REPLACE_ONE, hiding=Hiding.REPORTS)
    summed = SummedEvent(release, 100)
    epsilon(RepeatedEvent(summed, 20 + repeat), DELTA, Threat.SECURE_AGGREGATION)


def _scores(repeat: int) -> None:
    rng = np.random.default_rng(repeat)
    vectors = rng.dirichlet(np.ones(10), 1_000)
    for name in CLUSTERINGS:
        clustering_score(name, vectors, vectors.argmax(axis=1))


# Each is told how often it was done before, so that it never has the same to do.
WORK: dict[str, Callable[[int], None]] = {
    "labels": _labels,
    "ledger": _ledger,
    "later round": _later_round,
    "scores": _scores,
}


def lockstep() -> float:
    """How many times as fast tiny clients train together; 1 where their bits would differ."""
    rng = np.random.default_rng(0)
    count = 16 * TINY_CLIENTS
    images = rng.random((count, 1, 8, 8), dtype=np.float32)
    labels = rng.integers(0, 10, count)
    trainer = Trainer(partial(mlp, hidden=[]), (1, 8, 8), 10, exact_stack=True)
    stack = trainer.stack
    assert stack is not None
    start = trainer.initial(rng)
    how: dict[str, Any] = {"batch_size": 8, "lr": 0.1, "epochs": 4}

    def shares() -> list[ClientBatch]:
        rows = np.arange(count).reshape(TINY_CLIENTS, -1)
        return [ClientBatch(start, own, np.random.default_rng(k)) for k, own in enumerate(rows)]

    def alone(_: int) -> None:
        for share in shares():
            trainer.train_single(images, labels, share, **how)

    def together(_: int) -> None:
        own = shares()
        for share, model in zip(own, stack.train(images, labels, own, **how), strict=True):
            if model is None:
                trainer.train_single(images, labels, share, **how)

    return _seconds(alone) / _seconds(together)


def _seconds(work: Callable[[int], None], repeats: int = 5) -> float:
    """The median of the processor's time, after one time that does not count."""
    work(0)
    spent = []
    for repeat in range(1, repeats + 1):
        begun = time.process_time()
        work(repeat)
        spent.append(time.process_time() - begun)
    return statistics.median(spent)


def main() -> None:
    """A line for each."""
    print(f"{describe_machine('torch')}\n")
    print("| work | s; times; pages |\n|---|---|")
    for name, figure in measure().items():
        print(f"| {name} | {figure:.3g} |")


if __name__ == "__main__":
    main()
