"""Where the time of local training goes: ``python -m benchmarks.profile [cnn mlp privatekt]``.

torch.profiler over steps of the three models of the comparisons, on one thread: the share of each
PyTorch operation, and of the Python between them. Prints Markdown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch.profiler import ProfilerActivity, profile

from benchmarks.machine import describe_machine
from murmur.learning import models
from murmur.learning.process import keep_heap, take_over
from murmur.learning.training.trainer import Trainer

SHAPE, CLASSES, EXAMPLES, SHOWN = (1, 28, 28), 10, 600, 8


@dataclass(frozen=True)
class Case:
    """A model's factory with its settings, and the batch size that the comparison uses."""

    factory: str
    batch_size: int
    hidden: tuple[int, ...] = ()

    def trainer(self) -> Trainer:
        """Ready to train on MNIST's shape."""
        settings = {"hidden": list(self.hidden)} if self.hidden else {}
        build = getattr(models, self.factory)
        return Trainer(lambda **shape: build(**shape, **settings), SHAPE, CLASSES)


CASES = {
    "cnn": Case("cnn_16", 64),
    "mlp": Case("mlp", 32, (256,)),
    "privatekt": Case("cnn_privatekt", 32),
}


def shares(case: Case, epochs: int) -> tuple[dict[str, float], float, float]:
    """Each operation's share of the time, the rest's, and CPU milliseconds per step unprofiled."""
    take_over()
    keep_heap()
    trainer, rng = case.trainer(), np.random.default_rng(0)
    images = rng.random((EXAMPLES, *SHAPE), dtype=np.float32)
    labels = rng.integers(0, CLASSES, EXAMPLES)
    steps = epochs * -(-EXAMPLES // case.batch_size)

    def run(clock: Callable[[], float]) -> float:
        start = clock()
        trainer.train(images, labels, rng=rng, epochs=epochs, batch_size=case.batch_size, lr=1e-3)
        return clock() - start

    run(time.process_time)
    seconds = run(time.process_time)
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        whole = run(time.perf_counter)
    spent = {event.key: event.self_cpu_time_total / 1e6 for event in watched.key_averages()}
    top = sorted(spent, key=spent.__getitem__, reverse=True)[:SHOWN]
    result = {key.removeprefix("aten::"): spent[key] / whole for key in top}
    return result, 1 - sum(spent.values()) / whole, 1e3 * seconds / steps


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(CASES))
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    print(f"{describe_machine('torch')}; one thread")
    for name in options.models:
        case = CASES[name]
        by_operation, python, step = shares(case, options.epochs)
        print(
            f"\n{name}: {case.factory}, batches of {case.batch_size}, {step:.2f} ms of CPU a step"
        )
        print("\n| operation | share |\n|---|---|")
        for key, share in by_operation.items():
            print(f"| `{key}` | {share:.1%} |")
        print(f"| Python and the profiler's own cost | {python:.1%} |")


if __name__ == "__main__":
    main()
