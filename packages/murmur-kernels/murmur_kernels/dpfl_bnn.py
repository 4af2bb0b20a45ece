"""The binary network's gradients by hand, on the plan of ``murmur_kernels``, for speed.

The same as ``murmur.algorithms.dpfl_bnn.network.BinaryAutograd`` but for rounding. Only where the
kernels are installed: ``network.binary_backend`` chooses. First come the stages of layers that only
this network has, then the backend that puts all layers' stages in a row for each batch size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from murmur.algorithms.dpfl_bnn import network
from murmur.learning.models import Flatten
from murmur.learning.training.optimiser import Optimisation
from murmur.learning.training.parameters import FlatModel
from murmur_kernels import stages
from murmur_kernels.sequences import Plan, StagedBackend

_aten = torch.ops.aten
_PLANS_KEPT = 8


class SignStage(stages.Stage):
    """``Sign``: signs forwards, the identity backwards; never in place.

    Args:
        shape: of its output, the batch included.
        like: gives device and type of a buffer of its own.
        out: where to write the output; None: into a buffer of its own.
    """

    def __init__(self, shape: tuple[int, ...], like: Tensor, out: Tensor | None) -> None:
        # Never in place: the activation before needs its own output again.
        if out is None:
            self._out = like.new_empty(shape)
        else:
            self._out = out

    def forward(self, x: Tensor) -> Tensor:
        """The signs of ``x``."""
        return network.sign(x, self._out)

    def backward(self, dy: Tensor, scale: float, weight_factor: float) -> Tensor:
        """Straight through."""
        return dy


class ScaleStage(stages.Stage):
    """``Scale``.

    Args:
        factor: by which both passes multiply.
        out: where to write the output; None: in place.
    """

    def __init__(self, factor: float, out: Tensor | None) -> None:
        self._factor = factor
        self.input = out

    def forward(self, x: Tensor) -> Tensor:
        """``x`` · factor, in place where it can be."""
        return torch.mul(x, self._factor, out=x if self.input is None else self.input)

    def backward(self, dy: Tensor, scale: float, weight_factor: float) -> Tensor:
        """Dy · factor."""
        return dy.mul_(self._factor)


class BatchNormStage(stages.Stage):
    """``BatchNorm`` in training mode, over (B, C) or (B, H, W, C).

    Args:
        layer: its running statistics are updated.
        target: where the gradient of (scale, shift) goes, (2, C).
        out: where to write the output, or None.
    """

    def __init__(self, layer: network.BatchNorm, target: Tensor, out: Tensor | None) -> None:
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

    def backward(self, dy: Tensor, scale: float, weight_factor: float) -> Tensor:
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
    """Backend of a network of ``murmur.algorithms.dpfl_bnn.network``.

    Args:
        flat: the model; its vector is W̄.
        input_shape: (channels, height, width).
    """

    def __init__(self, flat: FlatModel, input_shape: tuple[int, int, int]) -> None:
        channels, height, width = input_shape
        super().__init__(flat, input_shape)
        self._image = (height, width, channels)
        self._signs = torch.empty_like(self._vector)
        self.local = network.LocalNormalisation(flat)
        self._shapes = self._trace()
        self._plan = lru_cache(_PLANS_KEPT)(self._build)

    @contextmanager
    def training(self, rng: np.random.Generator) -> Iterator[Tensor]:
        """See ``Backend``; the normalisation's optimiser starts afresh, too."""
        self.local.begin()
        with super().training(rng) as vector:
            yield vector

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """See ``Backend``."""
        batch = len(x)
        network.sign(self._vector, self._signs)
        self._plan(batch).run(x, y, 1 / batch, 0.0)
        return self._gradient

    def sgd_step(self, x: Tensor, y: Tensor, lr: float, weight_factor: float) -> None:
        """See ``Backend``."""
        gradient = self.gradient(x, y)
        self._vector.mul_(weight_factor).sub_(gradient, alpha=lr)

    def after_step(self, how: Optimisation) -> None:
        """Clip W̄ to [−1, 1], and move the normalisation."""
        self._vector.clamp_(-1, 1)
        self.local.step(how)

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
        weights = stages.stored_views(self._flat, self._signs)
        targets = stages.stored_views(self._flat, self._gradient)
        norms = dict(zip(self.local.norms, self.local.views(self.local.gradient), strict=True))
        logits = self._signs.new_empty(self._shapes[-1][0], batch).t()
        out: Tensor | None = logits
        built: list[stages.Stage] = []
        layers = list(self._flat.module.named_children())
        # From the last layer to the first, since each says where it wants its input.
        for index, (name, layer) in reversed(list(enumerate(layers))):
            shape = (batch, *self._shapes[index])
            own = _affine(weights, name)
            moved = _affine(targets, name)
            stage = self._stage(layer, own, moved, shape, out, norms, index == 0)
            built.insert(0, stage)
            out = stage.input
        return Plan(built, logits)

    def _stage(
        self,
        layer: nn.Module,
        own: stages.Affine,
        moved: stages.Affine,
        shape: tuple[int, ...],
        out: Tensor | None,
        norms: dict[network.BatchNorm, Tensor],
        first: bool,
    ) -> stages.Stage:
        match layer:
            case network.BinaryConv2d():
                return stages.ConvolutionStage(layer, own, moved, first)
            case network.BinaryLinear():
                return stages.LinearStage(own, moved, shape[0], out, first)
            case network.BatchNorm():
                return BatchNormStage(layer, norms[layer], out)
            case network.Scale():
                return ScaleStage(layer.factor, out)
            case network.Sign():
                return SignStage(shape, self._signs, out)
            case nn.MaxPool2d():
                return stages.max_pool_stage(layer, self._vector, shape)
            case nn.Tanh():
                return stages.ActivationStage(layer, out)
            case Flatten():
                return stages.FlattenStage(shape, out)
        raise ValueError(f"model={type(layer).__name__}: is no layer of a binary network")


def _affine(views: dict[str, Tensor], layer: str) -> stages.Affine:
    return views.get(f"{layer}.weight"), views.get(f"{layer}.bias")  # type: ignore[return-value]


def _channels_second(x: Tensor) -> Tensor:
    if x.dim() == 2:
        return x
    return x.permute(0, 3, 1, 2)


def _channels_last(x: Tensor) -> Tensor:
    if x.dim() == 2:
        return x
    return x.permute(0, 2, 3, 1)
