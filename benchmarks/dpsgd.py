"""DP-SGD here and in plain Opacus, alternately, one thread: ``python -m benchmarks.dpsgd``.

Both train the CNN of KD-DPFL on images of MNIST's shape, both with Poisson lots and noise; here
the noise is discrete, from AES, on exact integer sums, there floating-point, from PyTorch. Times
are processor seconds, which other programs on the machine disturb least. The table gives the
median over the repetitions, and of the ratios within a repetition.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch

from murmur.learning.models import cnn_tanh
from murmur.learning.process import keep_heap, take_over
from murmur.learning.training.dpsgd import SENSITIVITY, DpSgd
from murmur.learning.training.trainer import Trainer
from murmur.privacy.mechanisms.sampled_gaussian import SampledGaussian
from murmur.privacy.noise import NoiseGenerator

EXAMPLES, SHAPE, CLASSES, NOISE = 6000, (1, 28, 28), 10, 1.5
Steps = Callable[[int], None]


def data() -> tuple[np.ndarray, np.ndarray]:
    """Random images and labels."""
    rng = np.random.default_rng(0)
    images = rng.random((EXAMPLES, *SHAPE), dtype=np.float32)
    return images, rng.integers(0, CLASSES, EXAMPLES)


def ours(lot: int) -> Steps:
    """DP-SGD of this project."""
    images, labels = data()
    trainer = Trainer(cnn_tanh, SHAPE, CLASSES)
    mechanism = SampledGaussian(lot / EXAMPLES, NOISE, SENSITIVITY)
    settings, noise = DpSgd(lot, 1.0, 0.1), NoiseGenerator.from_os()

    def run(steps: int) -> None:
        settings.train(
            trainer,
            images,
            labels,
            steps=steps,
            sample=lambda count: mechanism.sample(count, noise),
            perturb=lambda total: mechanism.perturb(total, noise),
        )

    return run


def opacus(lot: int) -> Steps:
    """Opacus' PrivacyEngine, as its tutorial has it."""
    from opacus import PrivacyEngine

    images, labels = (torch.from_numpy(array) for array in data())
    module = cnn_tanh(SHAPE, CLASSES)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(images, labels), batch_size=lot
        ),
        noise_multiplier=NOISE,
        max_grad_norm=1.0,
    )

    def run(steps: int) -> None:
        done = 0
        while done < steps:
            for x, y in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                done += 1
                if done == steps:
                    break

    return run


def seconds(run: Steps, steps: int) -> float:
    """Processor seconds of one step."""
    start = time.process_time()
    run(steps)
    return (time.process_time() - start) / steps


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dpsgd")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--lots", type=int, nargs="+", default=[50, 250])
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    take_over()
    keep_heap()
    print("| lot | examples/s here | examples/s Opacus | here / Opacus |\n|---|---|---|---|")
    for lot in options.lots:
        runs, steps = (ours(lot), opacus(lot)), max(5, 3000 // lot)
        for run in runs:
            run(3)
        times = [tuple(seconds(run, steps) for run in runs) for _ in range(options.repetitions)]
        here, there = (statistics.median(pair[i] for pair in times) for i in (0, 1))
        ratio = statistics.median(b / a for a, b in times)
        print(f"| {lot} | {lot / here:,.0f} | {lot / there:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
