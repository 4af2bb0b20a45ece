"""What this machine's cores can do, and the arithmetic in a round's training.

A round that is bounded by kernels reads differently on another processor: its table names the
measured peak beside it, and the share of the peak that the round's training reaches.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from murmur.learning import models
from murmur.learning.process import has_bfloat16

_SIZE, _BATCH = 2048, 64
_BYTES = 2**28  # more than any cache holds
_FACTORIES: dict[str, Callable[..., torch.nn.Module]] = {
    "cnn": models.cnn_16,
    "mlp": lambda *shape: models.mlp(*shape, hidden=[256]),
    "privatekt": models.cnn_privatekt,
}


def measure(threads: int | None = None) -> dict[str, float]:
    """GFLOP/s of matrix products and GB/s of a copy, the best of several.

    ``threads``: of the products; None: on all cores. Without ``bf16`` on a processor that would
    emulate it.
    """
    torch.set_num_threads(threads or os.cpu_count() or 1)
    found = {"fp32": _products(torch.float32)}
    if has_bfloat16():
        found["bf16"] = _products(torch.bfloat16)
    source = np.ones(_BYTES // 8)
    target = np.empty_like(source)
    found["copy"] = 2 * _BYTES / _least(lambda: np.copyto(target, source)) / 1e9
    return found


def training(model: str) -> float:
    """GFLOP to train on one example: forward and backward, as PyTorch counts them."""
    module = _FACTORIES[model]((1, 28, 28), 10).eval()  # dropout is no arithmetic
    counter = FlopCounterMode(display=False)
    with counter:
        outputs = module(torch.rand(_BATCH, 1, 28, 28))
        functional.cross_entropy(outputs, torch.zeros(_BATCH, dtype=torch.int64)).backward()
    return counter.get_total_flops() / _BATCH / 1e9


def _products(kind: torch.dtype) -> float:
    factor = torch.rand(_SIZE, _SIZE).to(kind)
    return 2 * _SIZE**3 / _least(lambda: factor @ factor) / 1e9


def _least(call: Callable[[], object], repeats: int = 8) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
