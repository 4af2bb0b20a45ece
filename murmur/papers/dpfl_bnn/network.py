"""The binary network of DPFL-BNN, for ``conf/model``.

Liu, Zhang, Song, Letaief, "Binary federated learning with client-level differential privacy",
arXiv 2308.03320 (2023), section V. The flat vector (d,) is W̄, one number for each bit that the
federation shares: d = 81,848 on 28×28 images, 81,958 with the biases that normalisation makes
redundant. Normalisation lives in buffers, which stay with the client (``Trainer.buffers``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from murmur.learning.layers import Flatten, HalvingPool
from murmur.learning.models import InputShape, Network
from murmur.learning.training.batches import as_tensor
from murmur.learning.training.trainer import Trainer
from murmur.papers.dpfl_bnn.layers import BatchNorm, BinaryConv2d, BinaryLinear, Scale, Sign
from murmur.papers.dpfl_bnn.manual_gradients import BinaryBackend


class BinaryNetwork(Network):
    """A sequence of layers that brings its own way to be trained; see ``training.trainer``."""

    backend = BinaryBackend


def bnn(
    input_shape: InputShape,
    num_classes: int,
    *,
    channels: Sequence[int] = (16, 16),
    hidden: int = 100,
    bias: bool = False,
    bn: str = "local",
) -> BinaryNetwork:
    """3×3 convolutions, each pooled by 2, and two dense layers, all of them binary.

    Inputs of the last layer, and of every convolution but the first, are binarised too.

    Args:
        input_shape: (channels, height, width).
        num_classes: number of logits.
        channels: of the convolutions; none of them gives a binary multilayer perceptron.
        hidden: width of the first dense layer.
        bias: whether the dense layers have (binary) biases.
        bn: ``local`` batch normalisation on the client, or ``none``: outputs are then divided by
            the square root of the number of inputs.

    Raises:
        ValueError: a setting is outside its range or the images are too small.
    """
    if any(width < 1 for width in channels):
        raise ValueError(f"channels={list(channels)}: must be integers of at least 1")
    if hidden < 1:
        raise ValueError(f"hidden={hidden}: must be at least 1")
    if bn not in ("local", "none"):
        raise ValueError(f"bn={bn!r}: must be 'local' or 'none'")
    shrink = 2 ** len(channels)
    height, width = (size // shrink for size in input_shape[1:])
    if min(height, width) < 1:
        raise ValueError(
            f"input_shape={tuple(input_shape)}: too small for model bnn, whose poolings by 2 "
            f"shrink it to nothing; use images of at least {shrink}x{shrink}"
        )
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise((input_shape[0], *channels))):
        layers += [Sign()] if index else []
        layers += [BinaryConv2d(before, after, 3, padding=1, bias=False)]
        layers += [_normalisation(bn, 9 * before, after), HalvingPool(), nn.Tanh()]
    features = (input_shape[0], *channels)[-1] * height * width
    layers += [Flatten(), BinaryLinear(features, hidden, bias=bias)]
    layers += [_normalisation(bn, features, hidden), nn.Tanh(), Sign()]
    layers += [BinaryLinear(hidden, num_classes, bias=bias)]
    layers += [_normalisation(bn, hidden, num_classes)]
    return BinaryNetwork(layers)


@torch.no_grad()
def refresh_statistics(trainer: Trainer, images: NDArray[np.float32]) -> None:
    """Set the normalisation's running statistics to those of ``images`` (N, C, H, W).

    The running statistics of training are an average over weights that have since changed, and
    binary weights change by leaps.
    """
    norms = [m for m in trainer.flat.module.modules() if isinstance(m, BatchNorm)]
    trainer.flat.train()
    for norm in norms:
        norm.momentum = 1.0
    try:
        trainer.flat.module(as_tensor(images))
    finally:
        for norm in norms:
            norm.momentum = BatchNorm.momentum


def _normalisation(bn: str, inputs: int, outputs: int) -> nn.Module:
    return BatchNorm(outputs) if bn == "local" else Scale(1 / math.sqrt(inputs))
