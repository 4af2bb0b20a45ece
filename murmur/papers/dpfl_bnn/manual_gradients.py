"""Straight-through gradients of binary networks, by hand, on the plan of ``kernels.sequences``.

What ``training.backends.AutogradBackend`` is for other models. The gradient is taken with respect
to W^b = sign(W̄) and returned for W̄; ``after_step`` clips W̄ to [−1, 1] and moves the
normalisation's own scale and shift, which belong to no shared vector, by the same rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch
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
from murmur.learning.layers import Flatten
from murmur.learning.training.optimiser import Optimisation, Optimiser
from murmur.learning.training.parameters import FlatModel
from murmur.papers.dpfl_bnn.layers import BatchNorm, BinaryConv2d, BinaryLinear, Scale, Sign, sign

_aten = torch.ops.aten
_PLANS_KEPT = 8


class SignStage(Stage):
    """``murmur.papers.dpfl_bnn.layers.Sign``."""

    def __init__(self, shape: tuple[int, ...], like: Tensor, out: Tensor | None) -> None:
        # Never in place: the activation before needs its own output again.
        self._out = like.new_empty(shape) if out is None else out

    def forward(self, x: Tensor) -> Tensor:
        """The signs of ``x``."""
        return sign(x, self._out)

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor:
        """Straight through."""
        return dy


class ScaleStage(Stage):
    """``murmur.papers.dpfl_bnn.layers.Scale``."""

    def __init__(self, factor: float, out: Tensor | None) -> None:
        self._factor, self.input = factor, out

    def forward(self, x: Tensor) -> Tensor:
        """``x`` · factor, in place where it can be."""
        return torch.mul(x, self._factor, out=x if self.input is None else self.input)

    def backward(self, dy: Tensor, scale: float, retention: float) -> Tensor:
        """Dy · factor."""
        return dy.mul_(self._factor)


class BatchNormStage(Stage):
    """``murmur.papers.dpfl_bnn.layers.BatchNorm`` in training mode, over (B, C) or (B, H, W, C).

    Args:
        layer: its running statistics are updated.
        target: where the gradient of (scale, shift) goes, (2, C).
        out: where to write the output, or None.
    """

    def __init__(self, layer: BatchNorm, target: Tensor, out: Tensor | None) -> None:
        self._layer, self._target, self._out = layer, target, out
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
        return y if self._out is None else self._out.copy_(y)

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
            norm.weight.data, norm.bias.data = view[0], view[1]
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
            own, moved = _affine(weights, name), _affine(targets, name)
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
    return x if x.dim() == 2 else x.permute(0, 3, 1, 2)


def _channels_last(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.permute(0, 2, 3, 1)
