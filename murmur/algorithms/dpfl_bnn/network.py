"""The binary network of DPFL-BNN: model, layers, and its straight-through gradients.

Liu, Zhang, Song, Letaief, "Binary federated learning with client-level differential privacy",
arXiv 2308.03320 (2023), section V; layers after Hubara et al., "Binarized Neural Networks", NeurIPS
2016: W^b = sign(W̄) with 0 → +1, and gradients pass the sign unchanged (straight-through).

* ``bnn`` makes the network, for ``conf/model``. The flat vector (d,) is W̄, one number for each bit
  that the federation shares: d = 81,848 on 28×28 images, 81,958 with the biases that normalisation
  makes redundant. Normalisation lives in buffers, which stay with the client.
* The layers are PyTorch modules: what inference runs, and the reference for gradients.
* ``BinaryAutograd`` trains them: the gradient is taken with respect to W^b and returned for W̄;
  after each step W̄ is clipped to [−1, 1], and the normalisation's own scale and shift move by the
  same rule. Installed kernels do the same faster.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from murmur.learning.models import Flatten, HalvingPool, InputShape, Network
from murmur.learning.process import kernels
from murmur.learning.training import backends, batches, optimiser, parameters
from murmur.learning.training.trainer import Trainer

# Layers -----------------------------------------------------------------------------------------


def sign(x: Tensor, out: Tensor | None = None) -> Tensor:
    """±1 with 0 → +1, where PyTorch's own sign gives 0; into ``out`` if given, without a copy."""
    out = torch.sign(x, out=out)
    return torch.sign(out.add_(0.5), out=out)


class _StraightThrough(torch.autograd.Function):
    """``sign`` forwards, the identity backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return sign(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # type: ignore[override]
        return dy


def _binary(x: Tensor) -> Tensor:
    return _StraightThrough.apply(x)  # type: ignore[no-untyped-call]


class BinaryConv2d(nn.Conv2d):
    """A convolution that computes with the signs of its weights."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, in, H, W) to (N, out, H', W')."""
        return self._conv_forward(x, _binary(self.weight), None)


class BinaryLinear(nn.Linear):
    """A dense layer that computes with the signs of its weights, and of its biases if any."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, in) to (N, out)."""
        if self.bias is None:
            bias = None
        else:
            bias = _binary(self.bias)
        return F.linear(x, _binary(self.weight), bias)


class Sign(nn.Module):
    """The signs of activations that lie in (−1, 1), as tanh's do."""

    def forward(self, x: Tensor) -> Tensor:
        """±1 in the shape of ``x``."""
        return _binary(x)


class Scale(nn.Module):
    """Times a constant: takes the place of normalisation where there is none."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """``x`` · factor."""
        return x * self.factor


class BatchNorm(nn.Module):
    """Batch normalisation (Ioffe & Szegedy, ICML 2015) all of whose numbers are buffers.

    So neither its statistics nor its scale and shift belong to the parameters that are shared:
    sent without noise they would tell of the data. A binary backend trains them.

    Args:
        channels: C of (N, C, ...).
    """

    momentum = 0.1
    eps = 1e-5

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def initialise(self, rng: np.random.Generator) -> None:
        """Scale 1, shift 0, fresh statistics; draws nothing."""
        for buffer, value in zip(self.buffers(), (1.0, 0.0, 0.0, 1.0), strict=True):
            buffer.fill_(value)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the batch in training, by the running statistics otherwise.

        One value per channel has no variance; then by the running statistics, too.
        """
        return F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training and x.numel() > self.channels,
            self.momentum,
            self.eps,
        )


# Training ---------------------------------------------------------------------------------------


class LocalNormalisation:
    """Scale and shift of a model's normalisation, which move beside W̄ and are never sent.

    Attributes:
        norms: the normalising layers, in the model's order.
        vector: their scales and shifts, (2·ΣC,); the layers' buffers are views into it.
        gradient: where a backend puts the gradient with respect to ``vector``.
    """

    def __init__(self, flat: parameters.FlatModel) -> None:
        self.norms = [m for m in flat.module.modules() if isinstance(m, BatchNorm)]
        count = 2 * sum(norm.channels for norm in self.norms)
        self.vector, self.gradient = flat.vector.new_zeros(2, count).unbind()
        for norm, view in zip(self.norms, self.views(self.vector), strict=True):
            view[0].copy_(norm.weight)
            view[1].copy_(norm.bias)
            norm.weight.data = view[0]
            norm.bias.data = view[1]
        self._optimiser = optimiser.Adam(self.vector)

    def views(self, vector: Tensor) -> list[Tensor]:
        """Scale and shift of each layer in ``vector``, (2, C) each."""
        sizes = [2 * norm.channels for norm in self.norms]
        return [part.view(2, -1) for part in vector.split(sizes)]

    def begin(self) -> None:
        """A training begins: the optimiser starts afresh."""
        self._optimiser = optimiser.Adam(self.vector)

    def step(self, how: optimiser.Optimisation) -> None:
        """Move scale and shift as ``how`` says."""
        if how.optimizer == "sgd":
            self.vector.sub_(self.gradient, alpha=how.lr)
        else:
            self._optimiser.step(self.vector, self.gradient, self.vector, how)


class BinaryAutograd(backends.AutogradBackend):
    """Trains a binary network by PyTorch's autograd: W̄, and scale and shift beside it.

    The reference for ``kernels.BinaryBackend``, which gives the same but for rounding.

    Attributes:
        local: scale and shift of the normalisation, which no parameter vector holds.
    """

    def __init__(self, flat: parameters.FlatModel, input_shape: tuple[int, int, int]) -> None:
        super().__init__(flat, input_shape)
        self.local = LocalNormalisation(flat)

    @contextmanager
    def training(self, rng: np.random.Generator) -> Iterator[Tensor]:
        """See ``Backend``; the normalisation's optimiser starts afresh, too."""
        self.local.begin()
        with super().training(rng) as vector:
            yield vector

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """See ``Backend``; that of scale and shift goes where the normalisation keeps it."""
        self.local.gradient.zero_()
        leaves = [leaf for norm in self.local.norms for leaf in (norm.weight, norm.bias)]
        places = [row for view in self.local.views(self.local.gradient) for row in view]
        for leaf, place in zip(leaves, places, strict=True):
            leaf.requires_grad_(True)
            leaf.grad = place
        try:
            return super().gradient(x, y)
        finally:
            for leaf in leaves:
                leaf.requires_grad_(False)
                leaf.grad = None

    def after_step(self, how: optimiser.Optimisation) -> None:
        """Clip W̄ to [−1, 1], and move the normalisation."""
        self._flat.vector.clamp_(-1, 1)
        self.local.step(how)


def binary_backend(
    flat: parameters.FlatModel, input_shape: tuple[int, int, int]
) -> backends.Backend:
    """Returns what trains a binary network: by hand where kernels are installed."""
    by_hand = kernels("dpfl_bnn")
    if by_hand is None:
        return BinaryAutograd(flat, input_shape)
    backend: backends.Backend = by_hand.BinaryBackend(flat, input_shape)
    return backend


# The network ------------------------------------------------------------------------------------


class BinaryNetwork(Network):
    """A sequence of layers that brings its own way to be trained; see ``training.trainer``."""

    backend = staticmethod(binary_backend)


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
    binary weights change by leaps. The parameters stay, and the trainer's model is left in training
    mode.
    """
    norms = [m for m in trainer.flat.module.modules() if isinstance(m, BatchNorm)]
    trainer.flat.train()
    for norm in norms:
        norm.momentum = 1.0
    try:
        trainer.flat.module(batches.as_tensor(images))
    finally:
        for norm in norms:
            norm.momentum = BatchNorm.momentum


def _normalisation(bn: str, inputs: int, outputs: int) -> nn.Module:
    if bn == "local":
        return BatchNorm(outputs)
    return Scale(1 / math.sqrt(inputs))
