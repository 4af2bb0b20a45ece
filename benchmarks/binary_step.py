"""One local step of DPFL-BNN's binary network, beside a plain PyTorch loop of the same layers.

``python -m benchmarks.binary_step``; batch 64, 28×28 images, one thread; processor time, the best
of five times twenty steps.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch.nn import functional

from murmur.algorithms.dpfl_bnn.network import BatchNorm, bnn
from murmur.learning.process import keep_heap, take_over
from murmur.learning.training.trainer import Trainer


def main() -> None:
    """Milliseconds of one step of batch 64 on 28×28 images, one thread, best of five."""
    take_over()
    keep_heap()
    rng = np.random.default_rng(0)
    images = rng.random((640, 1, 28, 28), dtype=np.float32)
    labels = rng.integers(0, 10, 640)
    house = Trainer(bnn, (1, 28, 28), 10)
    house.load(house.initial(rng))

    def ours() -> None:
        house.train(images, labels, rng=rng, batch_size=64, steps=20, lr=0.1, optimizer="adam")

    module = bnn((1, 28, 28), 10)
    local = [
        t.requires_grad_()
        for m in module.modules()
        if isinstance(m, BatchNorm)
        for t in (m.weight, m.bias)
    ]
    optimiser = torch.optim.Adam([*module.parameters(), *local], lr=0.1)
    x, y = torch.from_numpy(images), torch.from_numpy(labels)

    def plain() -> None:
        for step in range(20):
            rows = slice(64 * (step % 10), 64 * (step % 10) + 64)
            optimiser.zero_grad()
            functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimiser.step()
            with torch.no_grad():
                for weight in module.parameters():
                    weight.clamp_(-1, 1)

    for name, run in (("house", ours), ("plain PyTorch", plain)):
        run()
        seconds = []
        for _ in range(5):
            started = time.process_time()
            run()
            seconds.append(time.process_time() - started)
        print(f"| {name} | {min(seconds) / 20 * 1e3:.1f} ms |")


if __name__ == "__main__":
    main()
