"""DP-SGD here and in plain Opacus, alternately, one thread: ``python -m benchmarks.dpsgd``.

Both train one client's model, the CNN of KD-DPFL or an MLP 784–256–10, on images of MNIST's shape,
both with Poisson lots and noise; here the noise is discrete, from AES, on exact integer sums, there
floating-point, from PyTorch. Times are processor seconds, which other programs on the machine
disturb least. The table gives the median over the repetitions, and of the ratios within one.
``--plain`` leaves out murmur-kernels, which tells what they gain.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from murmur.learning import process
from murmur.learning.models import cnn_tanh, mlp
from murmur.learning.process import keep_heap, take_over
from murmur.learning.training.dpsgd import SENSITIVITY, DpSgd
from murmur.learning.training.trainer import Trainer
from murmur.privacy.mechanisms.sampled_gaussian import SampledGaussian
from murmur.privacy.noise import NoiseGenerator

EXAMPLES, SHAPE, CLASSES, NOISE = 6000, (1, 28, 28), 10, 1.5
MODELS: dict[str, Callable[..., torch.nn.Module]] = {
    "cnn": cnn_tanh,
    "mlp": partial(mlp, hidden=[256]),
}
Steps = Callable[[int], None]


def data() -> tuple[np.ndarray, np.ndarray]:
    """Random images and labels."""
    rng = np.random.default_rng(0)
    images = rng.random((EXAMPLES, *SHAPE), dtype=np.float32)
    return images, rng.integers(0, CLASSES, EXAMPLES)


def ours(model: str, lot: int) -> Steps:
    """DP-SGD of this project."""
    images, labels = data()
    trainer = Trainer(MODELS[model], SHAPE, CLASSES)
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


def opacus(model: str, lot: int) -> Steps:
    """Opacus' PrivacyEngine, as its tutorial has it."""
    from opacus import PrivacyEngine

    images, labels = (torch.from_numpy(array) for array in data())
    module = MODELS[model](SHAPE, CLASSES)
    network, optimizer, loader = PrivacyEngine().make_private(
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
                torch.nn.functional.cross_entropy(network(x), y).backward()
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


def measure(model: str, lot: int, repetitions: int = 5) -> dict[str, float]:
    """Examples a second here and in Opacus, and the median of the ratios within a repetition."""
    runs = ours(model, lot), opacus(model, lot)
    steps = max(5, 3000 // lot)
    for run in runs:
        run(3)
    times = [tuple(seconds(run, steps) for run in runs) for _ in range(repetitions)]
    here, there = (statistics.median(pair[side] for pair in times) for side in (0, 1))
    ratio = statistics.median(other / own for own, other in times)
    return {"here": lot / here, "there": lot / there, "ratio": ratio}


def main() -> None:
    """Print the table, or one measure as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dpsgd")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--lots", type=int, nargs="+", default=[50, 250])
    parser.add_argument("--json", action="store_true", help="the first model and lot alone")
    parser.add_argument("--plain", action="store_true", help="without murmur-kernels")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if options.plain:
        process.KERNELS = "none"
    take_over()
    keep_heap()
    if options.json:
        print(json.dumps(measure(options.models[0], options.lots[0], options.repetitions)))
        return
    print("| model | lot | examples/s here | examples/s Opacus | here / Opacus |")
    print("|---|---|---|---|---|")
    for model in options.models:
        for lot in options.lots:
            found = measure(model, lot, options.repetitions)
            speeds = f"{found['here']:,.0f} | {found['there']:,.0f}"
            print(f"| {model} | {lot} | {speeds} | {found['ratio']:.2f} |")


if __name__ == "__main__":
    main()
