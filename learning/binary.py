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

from torch import nn

from learning.binary_backend import BinaryBackend
from learning.binary_layers import BatchNorm, BinaryConv2d, BinaryLinear, Scale, Sign
from learning.layers import Flatten
from learning.models import InputShape, Network


class BinaryNetwork(Network):
    """A sequence of layers that brings its own way to be trained; see ``learning.trainer``."""

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
    """Two 3×3 convolutions, each pooled by 2, and two dense layers, all of them binary.

    Inputs of the second convolution and of the last layer are binarised too.

    Args:
        input_shape: (channels, height, width).
        num_classes: number of logits.
        channels: of the two convolutions.
        hidden: width of the first dense layer.
        bias: whether the dense layers have (binary) biases.
        bn: ``local`` batch normalisation on the client, or ``none``: outputs are then divided by
            the square root of the number of inputs.

    Raises:
        ValueError: a setting is outside its range or the images are too small.
    """
    if len(channels) != 2 or min(channels) < 1:
        raise ValueError(f"channels={list(channels)}: must be two integers of at least 1")
    if hidden < 1:
        raise ValueError(f"hidden={hidden}: must be at least 1")
    if bn not in ("local", "none"):
        raise ValueError(f"bn={bn!r}: must be 'local' or 'none'")
    height, width = (size // 4 for size in input_shape[1:])
    if min(height, width) < 1:
        raise ValueError(
            f"input_shape={tuple(input_shape)}: too small for model bnn, whose two poolings by 2 "
            "shrink it to nothing; use images of at least 4x4"
        )
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise((input_shape[0], *channels))):
        layers += [Sign()] if index else []
        layers += [BinaryConv2d(before, after, 3, padding=1, bias=False)]
        layers += [_normalisation(bn, 9 * before, after), nn.MaxPool2d(2), nn.Tanh()]
    features = channels[1] * height * width
    layers += [Flatten(), BinaryLinear(features, hidden, bias=bias)]
    layers += [_normalisation(bn, features, hidden), nn.Tanh(), Sign()]
    layers += [BinaryLinear(hidden, num_classes, bias=bias)]
    layers += [_normalisation(bn, hidden, num_classes)]
    return BinaryNetwork(layers)


def _normalisation(bn: str, inputs: int, outputs: int) -> nn.Module:
    return BatchNorm(outputs) if bn == "local" else Scale(1 / math.sqrt(inputs))
