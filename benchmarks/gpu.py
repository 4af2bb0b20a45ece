"""Rounds on a GPU beside one CPU core, one client after the other, and pfl.

    python -m benchmarks.gpu [--rounds 5] [--only TEXT] [--pfl PYTHON] [--devices cpu cuda]

Three jobs: MNIST's 100 clients of 600 examples, federated averaging with and without noise; the
CIFAR-10 job of pfl's benchmarks, 50 clients of 50 images a round in batches of 10, with random
images of its shape; and the run of PrivateKT's authors. Whole runs of ``murmur``, timed from
outside round by round, evaluation included; pfl evaluates after the last round alone. Prints
Markdown: the median round after the first. Needs ``MURMUR_DATA``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks import processes
from benchmarks.machine import describe_machine

WAYS: dict[str, tuple[str, ...]] = {
    "one core": ("compute=cpu",),
    "GPU, one client after the other": ("compute=cuda", "compute.stack=1"),
    "GPU, stacks of 64": ("compute=cuda",),
    "GPU, stacks of 64, mixed precision": ("compute=cuda", "compute.mixed_precision=true"),
}
CLIENTS, COHORT, IMAGES, BATCH = 1000, 50, 50, 10  # pfl's CIFAR-10
TESTED = 1000
_LOCAL = "strategy.local={{epochs: 1, steps: null, batch_size: {}, learning_rate: 0.1}}"
_MNIST = ("dataset=mnist", "federation.num_clients=100", "federation.public=0", "partition=iid")
_NOISY = ("strategy=dp_fedavg", "privacy.epsilon=8", "federation.schedule=rotate")
_CNN = ("model=cnn_16", _LOCAL.format(64))
_MLP = ("model=mlp", "model.hidden=[256]", _LOCAL.format(32))
CIFAR = "random CIFAR-10, 50 of 1,000 clients"
TIMEOUT = 600.0


def jobs(images: Path) -> dict[str, tuple[str, ...]]:
    """The settings of each job; ``images``: the file of random ones."""
    cifar = (
        *("strategy=fedavg", "dataset=npz", f"dataset.path={images}", "dataset.num_classes=10"),
        *(f"federation.num_clients={CLIENTS}", f"federation.clients_per_round={COHORT}"),
        *("federation.public=0", "partition=iid", "model=cnn_16", "model.channels=[32,64]"),
        *("model.hidden=[128]", _LOCAL.format(BATCH)),
    )
    return {
        "MNIST, MLP, fedavg": ("strategy=fedavg", *_MNIST, *_MLP),
        "MNIST, MLP, dp_fedavg": (*_NOISY, *_MNIST, *_MLP),
        "MNIST, CNN, fedavg": ("strategy=fedavg", *_MNIST, *_CNN),
        "MNIST, CNN, dp_fedavg": (*_NOISY, *_MNIST, *_CNN),
        CIFAR: cifar,
        "PrivateKT, the authors' run": ("experiment=privatekt_mnist",),
    }


def random_images(folder: Path) -> Path:
    """Random images of CIFAR-10's shape: an archive for Murmur, and arrays for pfl beside it."""
    rng = np.random.default_rng(0)
    count = CLIENTS * IMAGES
    pixels = rng.integers(0, 256, (count + TESTED, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, count + TESTED)
    np.savez(
        folder / "images.npz",
        images=pixels[:count],
        labels=labels[:count],
        test_images=pixels[count:],
        test_labels=labels[count:],
    )
    floats = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).astype(np.float32) / 255
    arrays = {
        "train_images": floats[:count],
        "train_labels": labels[:count],
        "test_images": floats[count:],
        "test_labels": labels[count:],
        "rows": np.arange(count),
        "offsets": np.arange(0, count + 1, IMAGES),
    }
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return folder / "images.npz"


def murmur(words: Sequence[str], folder: Path, rounds: int) -> list[float]:
    """Seconds of each round after the first."""
    command = [sys.executable, "-m", "fl_app", *words, "engine=inline", "tracking=none"]
    command += [f"federation.num_rounds={rounds}", f"run_dir={folder}", "keep_checkpoints=false"]
    log = folder.with_suffix(".log")
    return processes.rounds(command, folder / "rounds.jsonl", rounds, log, TIMEOUT)["rounds"]


def pfl(python: str, device: str, folder: Path, rounds: int) -> list[float]:
    """The CIFAR-10 job by pfl in one process."""
    command = [python, "-m", "benchmarks.competitors.pfl_app", str(folder), "--model", "cifar"]
    command += ["--rounds", str(rounds), "--batch-size", str(BATCH), "--cohort", str(COHORT)]
    log = folder / "pfl.log"
    found = processes.run(command, log, PFL_PYTORCH_DEVICE=device, OMP_NUM_THREADS="1")
    return found["rounds"][1:]


def measured(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str, str]]:
    """(job, way, seconds of a round), as they come; what fails is said in place of a figure."""
    images = random_images(folder)
    for job, words in jobs(images).items():
        if options.only not in job:
            continue
        for number, (way, more) in enumerate(WAYS.items()):
            if more[0].removeprefix("compute=") in options.devices:
                run = folder / f"{len(words)}-{number}"
                yield job, way, _seconds(murmur, [*words, *more], run, options.rounds)
        if job == CIFAR and options.pfl:
            for device in options.devices:
                said = _seconds(pfl, options.pfl, device, folder, options.rounds)
                yield job, f"pfl, {device}", said


def _seconds(measure, *arguments) -> str:
    try:
        return f"{statistics.median(measure(*arguments)):.3f}"
    except RuntimeError as error:
        return str(error)


def main() -> None:
    """One row for each job and way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each run, at least 2")
    parser.add_argument("--only", default="", metavar="TEXT", help="jobs whose name has it")
    parser.add_argument("--pfl", metavar="PYTHON", help="of an environment with pfl")
    parser.add_argument("--devices", nargs="+", choices=["cpu", "cuda"], default=["cpu", "cuda"])
    options = parser.parse_args()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(
        f"{describe_machine('torch')}; {gpu}\n\n| job | way | s a round |\n|---|---|---|",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as scratch:
        for row in measured(options, Path(scratch)):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
