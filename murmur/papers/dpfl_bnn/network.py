"""The binary network of DPFL-BNN: model, layers, and its straight-through gradients by hand.

Liu, Zhang, Song, Letaief, "Binary federated learning with client-level differential privacy",
arXiv 2308.03320 (2023), section V; layers after Hubara et al., "Binarized Neural Networks", NeurIPS
2016: W^b = sign(W̄) with 0 → +1, and gradients pass the sign unchanged (straight-through).

* ``bnn`` makes the network, for ``conf/model``. The flat vector (d,) is W̄, one number for each bit
  that the federation shares: d = 81,848 on 28×28 images, 81,958 with the biases that normalisation
  makes redundant. Normalisation lives in buffers, which stay with the client.
* The layers are PyTorch modules: what inference runs, and the reference for gradients.
* ``BinaryBackend`` trains them on the plan of ``murmur.learning.kernels.sequences``, for
  speed: the gradient is taken with respect to W^b and returned for W̄; after each step W̄ is
  clipped to [−1, 1], and the normalisation's own scale and shift move by the same rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from murmur.learning.kernels.sequences import Plan, StagedBackend
from murmur.learning.kernels.stages import (
    ActivationStage,
    Affine,
    ConvolutionStage,
    FlattenStage,
    LinearStage,
    Stage,
    max_pool_stage,
    stored_views,
)
from murmur.learning.layers import Flatten, HalvingPool
from murmur.learning.models import InputShape, Network
from murmur.learning.training.batches import as_tensor
from murmur.learning.training.optimiser import Optimisation, Optimiser
from murmur.learning.training.parameters import FlatModel
from murmur.learning.training.trainer import Trainer

_aten = torch.ops.aten
_PLANS_KEPT = 8


# Layers -----------------------------------------------------------------------------------------


def sign(x: Tensor, out: Tensor | None = None) -> Tensor:
    """±1 with 0 → +1, where PyTorch's own sign gives 0; into ``out`` if given, without a copy."""
    if out is None:
        out = torch.sign(x)
    else:
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
    sent without noise they would tell of the data. ``BinaryBackend`` trains them.

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


# Gradients by hand ------------------------------------------------------------------------------


class SignStage(Stage):
    """``Sign``."""

    def __init__(self, shape: tuple[int, ...], like: Tensor, out: Tensor | None) -> None:
        # Never in place: the activation before needs its own output again.
        if out is None:
            self._out = like.new_empty(shape)
        else:
            self._out = out

    def forward(self, x: Tensor) -> Tensor:
        """The signs of ``x``."""
        return sign(x, self._out)

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor:
        """Straight through."""
        return dy


class ScaleStage(Stage):
    """``Scale``."""

    def __init__(self, factor: float, out: Tensor | None) -> None:
        self._factor = factor
        self.input = out

    def forward(self, x: Tensor) -> Tensor:
        """``x`` · factor, in place where it can be."""
        return torch.mul(x, self._factor, out=x if self.input is None else self.input)

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor:
        """Dy · factor."""
        return dy.mul_(self._factor)


class BatchNormStage(Stage):
    """``BatchNorm`` in training mode, over (B, C) or (B, H, W, C).

    Args:
        layer: its running statistics are updated.
        target: where the gradient of (scale, shift) goes, (2, C).
        out: where to write the output, or None.
    """

    def __init__(self, layer: BatchNorm, target: Tensor, out: Tensor | None) -> None:
        self._layer = layer
        self._target = target
        self._out = out
        self._saved: tuple[Tensor, Tensor, Tensor] | None = None
        self._by_batch = True

    def forward(self, x: Tensor) -> Tensor:
        """The normalised batch; ``x`` is kept as it is."""
        layer = self._layer
        seen = _channels_second(x)
        # One value per channel, a last batch of one example, has no variance.
        self._by_batch = x.numel() > layer.channels
        y, mean, inverse_deviation = _aten.native_batch_norm(
            seen,
            layer.weight,
            layer.bias,
            layer.running_mean,
            layer.running_var,
            self._by_batch,
            layer.momentum,
            layer.eps,
        )
        self._saved = (seen, mean, inverse_deviation)
        y = _channels_last(y)
        if self._out is None:
            return y
        return self._out.copy_(y)

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor:
        """The gradient with respect to the batch; that of scale and shift into the target."""
        if self._saved is None:
            raise RuntimeError("backward before forward")
        seen, mean, inverse_deviation = self._saved
        layer = self._layer
        dx, weight, bias = _aten.native_batch_norm_backward(
            _channels_second(dy),
            seen,
            layer.weight,
            layer.running_mean,
            layer.running_var,
            mean,
            inverse_deviation,
            self._by_batch,
            layer.eps,
            [True, True, True],
        )
        torch.mul(weight, scale, out=self._target[0])
        torch.mul(bias, scale, out=self._target[1])
        self._saved = None
        return _channels_last(dx)


class BinaryBackend(StagedBackend):
    """What ``training.trainer.Trainer`` needs of a network of ``murmur.papers.dpfl_bnn.network``.

    Args:
        flat: the model; its vector is W̄.
        input_shape: (channels, height, width).
    """

    def __init__(self, flat: FlatModel, input_shape: tuple[int, int, int]) -> None:
        channels, height, width = input_shape
        super().__init__(flat, input_shape)
        self._image = (height, width, channels)
        self._signs = torch.empty_like(self._vector)
        self._norms = [m for m in flat.module.modules() if isinstance(m, BatchNorm)]
        count = 2 * sum(norm.channels for norm in self._norms)
        self._local, self._local_gradient = flat.vector.new_zeros(2, count).unbind()
        for norm, view in zip(self._norms, self._local_views(self._local), strict=True):
            view[0].copy_(norm.weight)
            view[1].copy_(norm.bias)
            norm.weight.data = view[0]
            norm.bias.data = view[1]
        self._shapes = self._trace()
        self._plan = lru_cache(_PLANS_KEPT)(self._build)

    @contextmanager
    def training(self, rng: np.random.Generator) -> Iterator[Tensor]:
        """See ``Backend``; the normalisation's optimiser starts afresh, too."""
        self._optimiser = Optimiser(self._local)
        with super().training(rng) as vector:
            yield vector

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """See ``Backend``."""
        batch = len(x)
        sign(self._vector, self._signs)
        self._plan(batch).run(x, y, 1 / batch, 0.0)
        return self._gradient

    def descend(self, x: Tensor, y: Tensor, lr: float, retention: float) -> None:
        """See ``Backend``."""
        gradient = self.gradient(x, y)
        self._vector.mul_(retention).sub_(gradient, alpha=lr)

    def after_step(self, how: Optimisation) -> None:
        """Clip W̄ to [−1, 1]; move scale and shift of the normalisation as ``how`` says."""
        self._vector.clamp_(-1, 1)
        if how.is_plain:
            self._local.sub_(self._local_gradient, alpha=how.lr)
        else:
            self._optimiser.step(self._local, self._local_gradient, self._local, how)

    def _local_views(self, vector: Tensor) -> list[Tensor]:
        """Scale and shift of each normalisation in ``vector``, (2, C) each."""
        sizes = [2 * norm.channels for norm in self._norms]
        return [part.view(2, -1) for part in vector.split(sizes)]

    def _trace(self) -> list[tuple[int, ...]]:
        """Each layer's input shape, channels last, without the batch."""
        height, width, channels = self._image
        x = self._flat.vector.new_zeros(1, channels, height, width)
        shapes = []
        self._flat.module.eval()
        with torch.no_grad():
            for layer in self._flat.module.children():
                shapes.append(tuple(_channels_last(x).shape[1:]))
                x = layer(x)
        return [*shapes, tuple(x.shape[1:])]

    def _build(self, batch: int) -> Plan:
        weights = stored_views(self._flat, self._signs)
        targets = stored_views(self._flat, self._gradient)
        norms = dict(zip(self._norms, self._local_views(self._local_gradient), strict=True))
        logits = self._signs.new_empty(self._shapes[-1][0], batch).t()
        out: Tensor | None = logits
        stages: list[Stage] = []
        layers = list(self._flat.module.named_children())
        # From the last layer to the first, since each says where it wants its input.
        for index, (name, layer) in reversed(list(enumerate(layers))):
            shape = (batch, *self._shapes[index])
            own = _affine(weights, name)
            moved = _affine(targets, name)
            stage = self._stage(layer, own, moved, shape, out, norms, index == 0)
            stages.insert(0, stage)
            out = stage.input
        return Plan(stages, logits)

    def _stage(
        self,
        layer: nn.Module,
        own: Affine,
        moved: Affine,
        shape: tuple[int, ...],
        out: Tensor | None,
        norms: dict[BatchNorm, Tensor],
        first: bool,
    ) -> Stage:
        match layer:
            case BinaryConv2d():
                return ConvolutionStage(layer, own, moved, first)
            case BinaryLinear():
                return LinearStage(own, moved, shape[0], out, first)
            case BatchNorm():
                return BatchNormStage(layer, norms[layer], out)
            case Scale():
                return ScaleStage(layer.factor, out)
            case Sign():
                return SignStage(shape, self._signs, out)
            case nn.MaxPool2d():
                return max_pool_stage(layer, self._vector, shape)
            case nn.Tanh():
                return ActivationStage(layer, out)
            case Flatten():
                return FlattenStage(shape, out)
        raise ValueError(f"model={type(layer).__name__}: is no layer of a binary network")


def _affine(views: dict[str, Tensor], layer: str) -> Affine:
    return views.get(f"{layer}.weight"), views.get(f"{layer}.bias")  # type: ignore[return-value]


def _channels_second(x: Tensor) -> Tensor:
    if x.dim() == 2:
        return x
    return x.permute(0, 3, 1, 2)


def _channels_last(x: Tensor) -> Tensor:
    if x.dim() == 2:
        return x
    return x.permute(0, 2, 3, 1)


# The network ------------------------------------------------------------------------------------


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
    if bn == "local":
        return BatchNorm(outputs)
    return Scale(1 / math.sqrt(inputs))
