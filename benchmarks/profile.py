"""Where a step of local training stands under its roofline: ``python -m benchmarks.profile``.

    python -m benchmarks.profile [cnn mlp privatekt ...]

Each stage of a model's step (packages/murmur-kernels) is timed on one thread, forward and backward,
beside what its products would take at this core's peak and its weights at the speed of a copy.
Products are counted as PyTorch would do them, with the zeros that a kernel leaves out: so a stage
may be above the peak. Prints Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch
from torch import nn

from benchmarks import peak
from benchmarks.machine import describe_machine
from murmur.learning import models
from murmur.learning.process import keep_heap, take_over
from murmur.learning.training.trainer import Trainer
from murmur_kernels import fused, half, pooled, stages

SHAPE, CLASSES, EXAMPLES, EPOCHS = (1, 28, 28), 10, 640, 3
KINDS = {
    kind
    for module in (stages, fused, pooled, half)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, stages.Stage) and kind is not stages.Stage
}
WEIGHTED = (
    *(stages.LinearStage, stages.ConvolutionStage, stages.PatchConvolutionStage),
    *(fused.FusedStage, pooled.PooledStage, half.HalfLinearStage, half.HalfConvolutionStage),
)
Seconds = dict[stages.Stage, dict[str, list[float]]]


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
        return Trainer(lambda **shape: build(**shape, **settings), SHAPE, CLASSES, fused=True)


CASES = {
    "cnn": Case("cnn_16", 64),
    "mlp": Case("mlp", 32, (256,)),
    "privatekt": Case("cnn_privatekt", 32),
    "tanh": Case("cnn_tanh", 50),
}


@contextmanager
def timed(found: Seconds) -> Iterator[None]:
    """Note the seconds of every stage's forward and backward."""
    with ExitStack() as patches:
        for kind in KINDS:
            for name in ("forward", "backward"):
                if name in vars(kind):
                    call = _noted(found, name, getattr(kind, name))
                    patches.enter_context(mock.patch.object(kind, name, call))
        yield


def _noted(found: Seconds, name: str, call: Callable[..., object]) -> Callable[..., object]:
    def noted(stage: stages.Stage, *arguments: object) -> object:
        start = time.perf_counter()
        result = call(stage, *arguments)
        found[stage][name].append(time.perf_counter() - start)
        return result

    return noted


def products(case: Case) -> list[tuple[float, float]]:
    """Of each layer with weights: GFLOP forward for a batch, and MB of weights."""
    module = case.trainer().flat.module.eval()
    found = []

    def note(layer: nn.Conv2d | nn.Linear, _: object, y: torch.Tensor) -> None:
        weights = layer.weight.numel()
        places = y[0, 0].numel() if y.dim() == 4 else 1
        found.append((2e-9 * weights * places * case.batch_size, 4e-6 * weights))

    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(note)
    module(torch.zeros(1, *SHAPE))
    return found


def table(case: Case, speed: float, copy: float) -> Iterator[str]:
    """Markdown: a row for each stage, with its products' share of ``speed`` (GFLOP/s).

    ``copy``: GB/s of memory.
    """
    rng = np.random.default_rng(0)
    images = rng.random((EXAMPLES, *SHAPE), dtype=np.float32)
    labels = rng.integers(0, CLASSES, EXAMPLES)
    found: Seconds = defaultdict(lambda: defaultdict(list))
    with timed(found):
        trainer = case.trainer()
        for _ in range(2):  # once to warm up
            start = time.process_time()
            trainer.train(
                *(images, labels), rng=rng, batch_size=case.batch_size, epochs=EPOCHS, lr=1e-3
            )
    step = 1e3 * (time.process_time() - start) / (EPOCHS * -(-EXAMPLES // case.batch_size))
    most = max(len(seconds["forward"]) for seconds in found.values())
    layers = iter(products(case))
    yield "| stage | forward, ms | of peak | backward, ms | of peak | weights, copied, ms |"
    yield "|---|---|---|---|---|---|"
    whole, at_peak = 0.0, 0.0
    first = True
    for stage, seconds in found.items():
        if len(seconds["forward"]) < most:
            continue  # of a pass's last, smaller batch
        forward, backward = (
            1e3 * statistics.median(seconds[name]) for name in ("forward", "backward")
        )
        whole += forward + backward
        shares = ["", ""]
        memory = ""
        if isinstance(stage, WEIGHTED):
            gigaflop, megabytes = next(layers)
            ways = 1 if first else 2  # nobody needs the gradient of images
            first = False
            at_peak += 1e3 * (1 + ways) * gigaflop / speed
            shares = [f"{1e3 * gigaflop / speed / forward:.0%}"]
            shares.append(f"{1e3 * ways * gigaflop / speed / backward:.0%}")
            memory = f"{(2 + ways) * megabytes / copy:.3f}"
        name = type(stage).__name__
        yield f"| {name} | {forward:.3f} | {shares[0]} | {backward:.3f} | {shares[1]} | {memory} |"
    yield ""
    yield (
        f"Stages {whole:.2f} ms, {at_peak / whole:.0%} of the peak; a step of `train`, "
        f"{step:.2f} ms of processor."
    )


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=list(CASES), metavar="MODEL")
    options = parser.parse_args()
    take_over()
    keep_heap()
    torch.set_num_threads(1)
    found = peak.measure(threads=1)
    speed, copy = found["fp32"], found["copy"]
    print(f"{describe_machine('torch')}; one thread of {speed:.0f} GFLOP/s, {copy:.0f} GB/s")
    for name in options.models:
        case = CASES[name]
        print(f"\n{name}: {case.factory}, batches of {case.batch_size}\n")
        print("\n".join(table(case, speed, copy)))


if __name__ == "__main__":
    main()
