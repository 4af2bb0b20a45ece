"""Gradients of plain sequences of layers, written out by hand instead of by autograd.

For small models the arithmetic is a fraction of a step; the rest is autograd's bookkeeping, the
optimiser's passes over the parameters and fresh memory. A sequence of stages has none of these: its
buffers are made once per batch size, and a plain SGD step moves each parameter by the very matrix
product that computes its gradient. ``training.gradient`` is the general way, and the reference
that tests hold this one to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from itertools import pairwise

import torch
from torch import Tensor, nn

from murmur.learning.kernels.flat import FlatModel
from murmur.learning.kernels.fused_block import FusedBlock, FusedStage
from murmur.learning.kernels.half_precision import (
    HalfConvolutionStage,
    HalfLinearStage,
    computes_half,
    half_layer,
)
from murmur.learning.kernels.manual_layers import (
    ActivationStage,
    Affine,
    BiasStage,
    ConvolutionStage,
    DropoutStage,
    FlattenStage,
    LinearStage,
    Stage,
    pair,
)
from murmur.learning.kernels.patches import PatchConvolutionStage, is_strided
from murmur.learning.kernels.pooling import max_pool_stage
from murmur.learning.layers import Dropout, Flatten
from murmur.learning.training.gradient import Backend

# Batch sizes whose buffers are kept: the full batch, and the last ones of recent clients.
_PLANS_KEPT = 8


def supports(module: nn.Module) -> bool:
    """Whether ``module`` is a sequence of layers for ``ManualBackend``, none of them frozen."""
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
    if type(layer) is nn.Conv2d:
        return (
            layer.groups == 1
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
        )
    if isinstance(layer, nn.MaxPool2d):
        return (
            pair(layer.stride) == pair(layer.kernel_size)
            and pair(layer.padding) == (0, 0)
            and pair(layer.dilation) == (1, 1)
            and not (layer.ceil_mode or layer.return_indices)
        )
    return type(layer) in (Flatten, nn.Linear, nn.ReLU, nn.Tanh, Dropout)


class Plan:
    """The stages for one batch size and one target vector.

    Args:
        stages: the first reads the batch, the last writes into ``logits``.
        logits: (B, classes), stored classes first.
    """

    def __init__(self, stages: list[Stage], logits: Tensor) -> None:
        self._forward = [stage.forward for stage in stages]
        self._backward = [stage.backward for stage in reversed(stages)]
        # Classes first: along the slow axis softmax is vectorised, several times faster.
        self._logits = logits.t()
        self._residual = torch.empty_like(self._logits)
        self._dy = self._residual.t()

    def run(self, x: Tensor, y: Tensor, scale: float, retention: float) -> None:
        """Forward and backward for inputs ``x`` and targets ``y`` (classes, B); see ``Stage``."""
        for forward in self._forward:
            x = forward(x)
        # The loss's own value is not needed, and its gradient is softmax - target.
        torch.softmax(self._logits, 0, out=self._residual).sub_(y)
        dy = self._dy
        for backward in self._backward:
            dy = backward(dy, scale, retention)  # type: ignore[assignment]


class ManualBackend(Backend):
    """Works for modules that ``supports`` accepts.

    ``fused``: whether a first convolution and what follows it is compiled as one stage, on a CPU.
    ``half``: whether convolutions after the first compute in bfloat16.
    """

    guard = torch.inference_mode

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
                shape = x.shape if x.dim() == 2 else x.permute(0, 2, 3, 1).shape
                self._layers.append((name, layer, shape[1:]))
                x = layer(x)
        self._num_classes = x.shape[1]
        if isinstance(self._layers[0][1], Flatten):
            # The first linear layer takes the rows as they come.
            del self._layers[0]
        first, shape = self._layers[0][1:]
        self._image = shape if len(shape) == 3 else None
        if fused and flat.vector.is_cpu and self._image is not None:
            block = FusedBlock.beginning(list(flat.module.children()), shape)
            if block is not None:
                self._layers[: block.size] = [(self._layers[0][0], block, shape)]
        self.wants_ones = isinstance(first, nn.Linear) and first.bias is not None
        # Convolutions whose bias is added after the pooling that follows.
        self._late = {
            name
            for (name, layer, _), (_, following, _) in pairwise(self._layers)
            if isinstance(layer, nn.Conv2d)
            and isinstance(following, nn.MaxPool2d)
            and layer.bias is not None
            and not is_strided(layer)
        }
        later = self._layers[1:]
        self._half = {name for name, layer, _ in later if half and computes_half(layer)}
        self._plan = lru_cache(_PLANS_KEPT)(self._build)

    def gradient(self, rows: Tensor, y: Tensor) -> Tensor:
        """See ``Backend``."""
        self._run(rows, y, False, 1 / rows.shape[0], 0.0)
        return self._flat.gradient

    def descend(self, rows: Tensor, y: Tensor, lr: float, retention: float) -> None:
        """See ``Backend``."""
        self._run(rows, y, True, -lr / rows.shape[0], retention)

    def reader(self, batch: int) -> Callable[[Tensor], Tensor]:
        """See ``Backend``: layers as they are, but for what is fused or computed in bfloat16."""
        calls: list[Callable[[Tensor], Tensor]] = [] if self._image is not None else [Flatten()]
        parameters = self._flat.views(self._flat.vector)
        for name, layer, _ in self._layers:
            if isinstance(layer, FusedBlock):
                own = _affine(parameters, name)
                calls.append(FusedStage(layer, own, own, batch).infer)
            elif name in self._half:
                assert isinstance(layer, nn.Linear | nn.Conv2d)
                calls.append(half_layer(layer))
            else:
                calls.append(layer)
        return lambda x: reduce(lambda value, call: call(value), calls, x)

    def _run(self, rows: Tensor, y: Tensor, descend: bool, scale: float, retention: float) -> None:
        batch = rows.shape[0]
        x = rows if self._image is None else rows.view(batch, *self._image)
        self._plan(batch, descend).run(x, y, scale, retention)

    def _build(self, batch: int, descend: bool) -> Plan:
        vector = self._flat.vector
        parameters = self._flat.views(vector)
        targets = parameters if descend else self._flat.views(self._flat.gradient)
        stages: list[Stage] = []
        logits = vector.new_empty(self._num_classes, batch).t()
        out: Tensor | None = logits
        # From the last layer to the first, since each says where it wants its input.
        for index, (name, layer, shape) in reversed(list(enumerate(self._layers))):
            stage: Stage
            match layer:
                case nn.Linear():
                    own, moved = _affine(parameters, name), _affine(targets, name)
                    if name in self._half:
                        stage = HalfLinearStage(own, moved, batch, out)
                    else:
                        stage = LinearStage(own, moved, batch, out, index == 0)
                case FusedBlock():
                    own, moved = _affine(parameters, name), _affine(targets, name)
                    stage = FusedStage(layer, own, moved, batch)
                case nn.Conv2d():
                    own, moved = _affine(parameters, name), _affine(targets, name)
                    if is_strided(layer):
                        size = (batch, *shape)
                        stage = PatchConvolutionStage(layer, own, moved, size, index == 0)
                    else:
                        if name in self._late:
                            own, moved = (own[0], None), (moved[0], None)
                        if name in self._half:
                            sizes = (batch, *shape), (batch, *self._layers[index + 1][2])
                            stage = HalfConvolutionStage(layer, own, moved, *sizes)
                        else:
                            stage = ConvolutionStage(layer, own, moved, index == 0)
                case nn.MaxPool2d():
                    before, after = self._layers[index - 1][0], self._layers[index + 1][2]
                    if before in self._late:
                        bias = f"{before}.bias"
                        late = BiasStage(parameters[bias], targets[bias], (batch, *after), out)
                        stages.insert(0, late)
                        out = None
                    # A convolution's gradient needs its input, and its output no more.
                    reuse = isinstance(self._layers[index - 1][1], nn.Conv2d)
                    stage = max_pool_stage(layer, vector, (batch, *shape), reuse)
                case nn.ReLU() | nn.Tanh():
                    stage = ActivationStage(layer, out)
                case Dropout():
                    stage = DropoutStage(layer, vector.new_empty(batch, *shape), out)
                case _:
                    stage = FlattenStage((batch, *shape), out)
            stages.insert(0, stage)
            out = stage.input
        return Plan(stages, logits)


def _affine(views: dict[str, Tensor], layer: str) -> Affine:
    return views[f"{layer}.weight"], views.get(f"{layer}.bias")
