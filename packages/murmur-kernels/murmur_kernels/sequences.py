"""Gradients of plain sequences of layers, written out by hand instead of by autograd.

For small models the arithmetic is a fraction of a step; the rest is autograd's bookkeeping, the
optimiser's passes over the parameters and fresh memory. A sequence of stages has none of these: its
buffers are made once per batch size, and a plain SGD step moves each parameter by the very matrix
product that computes its gradient. ``training.backends.AutogradBackend`` is the general way, and
the reference that tests hold this one to.

``StagedBackend`` is the door: what stages like better than the world outside (the order of
parameters within a vector, a column of ones beside each row, targets with their classes first) is
converted in it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial, reduce
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from murmur.learning.models import Dropout, Flatten
from murmur.learning.process import MIN_LARGE_PARAMETERS
from murmur.learning.training.backends import Backend, InferenceFn
from murmur.learning.training.parameters import FlatModel
from murmur.learning.training.stack import TrainSingle
from murmur_kernels import stages
from murmur_kernels.fused import FusedBlock, FusedStage
from murmur_kernels.half import (
    HalfConvolutionStage,
    HalfLinearStage,
    computes_half,
    half_parameters,
)
from murmur_kernels.lockstep import Lockstep, can_lock
from murmur_kernels.pooled import PooledStage

# Batch sizes whose buffers are kept: the full batch, and the last ones of recent clients.
PLANS_KEPT = 8


def supports(module: nn.Module) -> bool:
    """Returns whether ``ManualBackend`` supports ``module``, a sequence without frozen layers.

    It begins with a convolution, or is flattened and begins with a linear layer, ends with a linear
    layer, and has no two activations behind each other.
    """
    trains = all(parameter.requires_grad for parameter in module.parameters())
    if not (isinstance(module, nn.Sequential) and trains):
        return False
    layers = list(module)
    kinds = [type(layer) for layer in layers]
    if kinds[:2] != [Flatten, nn.Linear] and kinds[:1] != [nn.Conv2d]:
        return False
    activations = [kind in (nn.ReLU, nn.Tanh) for kind in kinds]
    if any(a and b for a, b in pairwise(activations)):
        return False
    return kinds[-1] is nn.Linear and all(_supports_layer(layer) for layer in layers)


def _supports_layer(layer: nn.Module) -> bool:
    """Returns whether there is a stage for ``layer`` with its settings."""
    if type(layer) is nn.Conv2d:
        named_padding = isinstance(layer.padding, str)
        return layer.groups == 1 and layer.padding_mode == "zeros" and not named_padding
    if isinstance(layer, nn.MaxPool2d):
        apart = stages.pair(layer.stride) == stages.pair(layer.kernel_size)
        plain = stages.pair(layer.padding) == (0, 0) and stages.pair(layer.dilation) == (1, 1)
        return apart and plain and not (layer.ceil_mode or layer.return_indices)
    return type(layer) in (Flatten, nn.Linear, nn.ReLU, nn.Tanh, Dropout)


def gains_by_bfloat16(module: nn.Module) -> bool:
    """Returns whether any layer of a supported sequence would be computed in bfloat16."""
    layers = [layer for layer in module.children() if not isinstance(layer, Flatten)]
    return any(map(computes_half, layers[1:]))


class Plan:
    """The stages for one batch size and one target vector.

    Args:
        built: stages; the first reads the batch, the last writes into ``logits``.
        logits: (B, classes), stored classes first: along the slow axis softmax is vectorised,
            several times faster.
    """

    def __init__(self, built: list[stages.Stage], logits: Tensor) -> None:
        self._forward = [stage.forward for stage in built]
        self._backward = [stage.backward for stage in reversed(built)]
        self._logits = logits.t()
        self._residual = torch.empty_like(self._logits)
        self._dy = self._residual.t()

    def run(self, x: Tensor, y: Tensor, scale: float, weight_factor: float) -> None:
        """Forward and backward; each stage moves its own target (see ``Stage``).

        Args:
            x: inputs, as the first stage takes them.
            y: targets (B, classes), rows sum to 1.
            scale: of the gradient, summed over the batch.
            weight_factor: of what is in the target.
        """
        for forward in self._forward:
            x = forward(x)
        # The loss's own value is not needed, and its gradient is softmax - target.
        torch.softmax(self._logits, 0, out=self._residual)
        dy = self._dy.sub_(y)
        for backward in self._backward:
            dy = backward(dy, scale, weight_factor)  # type: ignore[assignment]


class StagedBackend(Backend):
    """Base of backends made of stages, with a vector of their own laid out by ``stored_views``.

    Args:
        flat: the model, whose vector is in the public order.
        input_shape: (channels, height, width).
    """

    @cached_property
    def _vector(self) -> Tensor:
        """The parameters in the backend's own layout."""
        with torch.inference_mode(False):
            return torch.empty_like(self._flat.vector)

    @cached_property
    def _parameters(self) -> dict[str, Tensor]:
        """Views into it, by name."""
        return stages.stored_views(self._flat, self._vector)

    @cached_property
    def _gradient(self) -> Tensor:
        """Result of ``gradient``, in the layout of ``_vector``."""
        return torch.zeros_like(self._vector)

    @contextmanager
    def training(self, rng: np.random.Generator) -> Iterator[Tensor]:
        """See ``Backend``; no stage draws from PyTorch's generator, nor needs autograd."""
        with torch.inference_mode():
            public = self._flat.views(self._flat.vector)
            _copy(public, self._parameters)
            yield self._vector
            _copy(self._parameters, public)

    def batch_buffer(self, count: int) -> tuple[Tensor, Tensor]:
        """See ``Backend``: (count, H, W, C), as stages have images."""
        _, images = super().batch_buffer(count)
        return images.permute(0, 2, 3, 1), images

    def to_layout(self, vector: Tensor) -> Tensor:
        """See ``Backend``."""
        arranged = torch.empty_like(self._flat.vector)
        _copy(self._flat.views(vector), stages.stored_views(self._flat, arranged))
        return arranged


def _copy(given: dict[str, Tensor], to: dict[str, Tensor]) -> None:
    """Copy each view of one layout into its counterpart in the other, by name.

    A matrix is transposed fastest into what is contiguous.
    """
    for name, part in given.items():
        view = to[name]
        if view.dim() == 2 and not view.is_contiguous():
            view = view.t()
            part = part.t()
        view.copy_(part)


class ManualBackend(StagedBackend):
    """The backend of modules that ``supports`` accepts.

    Args:
        flat: the model.
        input_shape: (channels, height, width).
        fused: whether a convolution and the pooling behind it are compiled as one stage, on a CPU.
        half: whether layers after the first that gain by it compute in bfloat16.
    """

    def __init__(
        self,
        flat: FlatModel,
        input_shape: tuple[int, int, int],
        fused: bool = False,
        half: bool = False,
    ) -> None:
        super().__init__(flat, input_shape)
        channels, height, width = input_shape
        self._layers: list[tuple[str, nn.Module | FusedBlock, torch.Size]] = []
        # Channels-last, as PyTorch sees it: its kernels choose their layout by the strides.
        x = flat.vector.new_zeros(1, height, width, channels).permute(0, 3, 1, 2)
        flat.module.eval()
        with torch.no_grad():
            for name, layer in flat.module.named_children():
                shape = x.shape
                if x.dim() == 4:
                    shape = x.permute(0, 2, 3, 1).shape
                self._layers.append((name, layer, shape[1:]))
                x = layer(x)
        self._num_classes = x.shape[1]
        # Numbers in a row of the first stage's input; None where it takes images.
        self._width: int | None = None
        if isinstance(self._layers[0][1], Flatten):
            # The first linear layer takes the rows as they come, its bias as a column of ones.
            del self._layers[0]
            first = self._layers[0][1]
            assert isinstance(first, nn.Linear)
            self._width = first.in_features + (first.bias is not None)
        later = self._layers[1:]
        self._half = {name for name, layer, _ in later if half and computes_half(layer)}
        if fused and flat.vector.is_cpu:
            self._layers = self._fused()
        # Convolutions whose bias is added after the pooling that follows.
        self._late = {
            name
            for (name, layer, _), (_, following, _) in pairwise(self._layers)
            if isinstance(layer, nn.Conv2d)
            and isinstance(following, nn.MaxPool2d)
            and layer.bias is not None
            and not stages.is_strided(layer)
        }
        self._plan = lru_cache(PLANS_KEPT)(self._build)

    def _fused(self) -> list[tuple[str, nn.Module | FusedBlock, torch.Size]]:
        """The layers, each convolution and what follows it as one block where a kernel can."""
        found: list[tuple[str, nn.Module | FusedBlock, torch.Size]] = []
        left = list(self._layers)
        while left:
            name, _, shape = left[0]
            layers = [layer for _, layer, _ in left]
            block = FusedBlock.beginning(layers, shape, later=bool(found))
            if block is None or name in self._half:
                found.append(left.pop(0))
            else:
                found.append((name, block, shape))
                del left[: block.size]
        return found

    def batch_buffer(self, count: int) -> tuple[Tensor, Tensor]:
        """See ``Backend``: what the first stage takes; where that is rows, each may end in a 1."""
        if self._width is None:
            return super().batch_buffer(count)
        channels, height, width = self._input_shape
        rows = self._flat.vector.new_ones(count, self._width)
        images = rows[:, : channels * height * width].view(count, height, width, channels)
        return rows, images.permute(0, 3, 1, 2)

    def lockstep(self, train_single: TrainSingle) -> Lockstep | None:
        """See ``Backend``."""
        flat = self._flat
        if self._half or not flat.vector.is_cpu or not can_lock(flat.module, flat.num_parameters):
            return None
        return Lockstep(flat, self._num_classes, self.batch_buffer, train_single)

    def release_buffers(self) -> None:
        """See ``Backend``: the backend's own vectors go, and the plans that point into them."""
        self._plan.cache_clear()
        for name in ("_vector", "_parameters", "_gradient"):
            self.__dict__.pop(name, None)

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """See ``Backend``; the mean over the batch, in the backend's own layout."""
        self._plan(len(x), False).run(x, y, 1 / len(x), 0.0)
        return self._gradient

    def sgd_step(self, x: Tensor, y: Tensor, lr: float, weight_factor: float) -> None:
        """See ``Backend``; a step on the backend's own vector, without a gradient in between."""
        self._plan(len(x), True).run(x, y, -lr / len(x), weight_factor)

    def inference_fn(self) -> InferenceFn:
        """See ``Backend``: layers as they are, but for what is fused or computed in bfloat16."""
        own = stages.stored_views(self._flat, self.to_layout(self._flat.vector))
        return partial(self._reader, own)

    def _reader(self, own: dict[str, Tensor], batch: int) -> Callable[[Tensor], Tensor]:
        """Returns the inference function of ``batch`` images with the parameters ``own``."""
        calls: list[Callable[[Tensor], Tensor]] = []
        if self._width is not None:
            calls.append(Flatten())
        for name, layer, _ in self._layers:
            if isinstance(layer, FusedBlock):
                parameters = stages.affine(own, name)
                stage = PooledStage if calls else FusedStage
                calls.append(stage(layer, parameters, parameters, batch).infer)
            elif isinstance(layer, nn.ReLU) and calls:
                calls.append(torch.relu_)  # what it is given is read by nobody else
            elif isinstance(layer, nn.Linear | nn.Conv2d):
                calls.append(_reading(layer, stages.affine(own, name), name in self._half))
            else:
                calls.append(layer)
        return lambda x: reduce(lambda value, call: call(value), calls, x)

    def _build(self, batch: int, descend: bool) -> Plan:
        """The stages for one batch size.

        Args:
            batch: B.
            descend: whether the stages' targets are the parameters themselves; else the gradient.
        """
        if self._flat.num_parameters >= MIN_LARGE_PARAMETERS:
            self._plan.cache_clear()  # a large model's activations are there for one size at a time
        targets = self._parameters
        if not descend:
            targets = stages.stored_views(self._flat, self._gradient)
        logits = self._vector.new_empty(self._num_classes, batch).t()
        built: list[stages.Stage] = []
        out: Tensor | None = logits
        # From the last layer to the first, since each says where it wants its input.
        for index in reversed(range(len(self._layers))):
            built[:0] = self._stages(index, batch, targets, out)
            out = built[0].input
        return Plan(built, logits)

    def _stages(
        self, index: int, batch: int, targets: dict[str, Tensor], out: Tensor | None
    ) -> list[stages.Stage]:
        """Returns the stages of one layer: two for pooling followed by a convolution's bias.

        Args:
            index: of the layer.
            batch: B.
            targets: what backward moves, by the parameters' names.
            out: where the next stage wants its input, or None.
        """
        name, layer, shape = self._layers[index]
        size = (batch, *shape)
        match layer:
            case nn.Linear() | nn.Conv2d() | FusedBlock():
                moved = stages.affine(targets, name)
                return [self._affine_stage(index, size, moved, out)]
            case nn.MaxPool2d():
                before = self._layers[index - 1][0]
                pooling = stages.max_pool_stage(layer, self._vector, size)
                if before not in self._late:
                    return [pooling]
                after = (batch, *self._layers[index + 1][2])
                bias = f"{before}.bias"
                return [
                    pooling,
                    stages.BiasStage(self._parameters[bias], targets[bias], after, out),
                ]
            case nn.ReLU() | nn.Tanh():
                return [stages.ActivationStage(layer, out)]
            case Dropout():
                return [stages.DropoutStage(layer, self._vector.new_empty(size), out)]
        return [stages.FlattenStage(size, out)]

    def _affine_stage(
        self, index: int, size: tuple[int, ...], moved: stages.Affine, out: Tensor | None
    ) -> stages.Stage:
        """Returns the stage of a layer with weights.

        Args:
            index: of the layer.
            size: of its input.
            moved: its target.
            out: where the next stage wants its input, or None.
        """
        name, layer, _ = self._layers[index]
        own = stages.affine(self._parameters, name)
        if isinstance(layer, FusedBlock):
            stage = PooledStage if index else FusedStage
            return stage(layer, own, moved, size[0])
        if isinstance(layer, nn.Linear):
            if name in self._half:
                return HalfLinearStage(own, moved, size[0], out)
            return stages.LinearStage(own, moved, size[0], out, index == 0)
        assert isinstance(layer, nn.Conv2d)
        if stages.is_strided(layer):
            return stages.PatchConvolutionStage(layer, own, moved, size, index == 0)
        if name in self._late:
            own = (own[0], None)
            moved = (moved[0], None)
        if name in self._half:
            following = (size[0], *self._layers[index + 1][2])
            return HalfConvolutionStage(layer, own, moved, size, following)
        return stages.ConvolutionStage(layer, own, moved, index == 0)


def _reading(
    layer: nn.Linear | nn.Conv2d, parameters: stages.Affine, half: bool
) -> Callable[[Tensor], Tensor]:
    """A layer in inference.

    Args:
        layer: gives the geometry.
        parameters: weight and bias to use.
        half: whether it computes in bfloat16.
    """
    weight, bias = parameters
    if half:
        weight, bias = half_parameters(parameters)

    def read(x: Tensor) -> Tensor:
        x = x.to(weight.dtype)
        if isinstance(layer, nn.Linear):
            return nn.functional.linear(x, weight, bias).float()
        return layer._conv_forward(x, weight, bias).float()

    return read
