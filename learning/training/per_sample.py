"""Per-sample gradients of a model, clipped and rounded towards zero onto an integer grid.

The gradients are those of Opacus (``GradSampleModule``). Rounding towards zero lets no coordinate
grow, so that one example adds an integer vector of norm at most ``SENSITIVITY`` to a sum, exactly,
in any number of dimensions; and the sums are exact in whatever order they are made.
"""

from __future__ import annotations

import copy
import math
import warnings

import numpy as np
import torch
from torch import Tensor, nn

from learning.layers import Dropout
from learning.seeding import seeded_torch
from learning.training.flat import FlatModel
from learning.training.trainer import Trainer

SENSITIVITY = 1 << 18
"""L2 norm of the longest gradient on the grid: the clipping norm, in grid steps."""

CHUNK = 64
"""Examples at a time; sums of so many coordinates of at most 2¹⁸ are exact in float32."""

# Few different sizes of a batch, so that kernels are planned once.
_PADDED = 16
# A float32 norm of so many entries is off by less than their number times 2⁻²⁴, in whatever order.
_COLUMNS = 1 << 12
_SAFE = 1 - (_COLUMNS + 16) * 2.0**-24


class PerSampleGradients:
    """Clipped per-sample gradients of a model, summed on the grid.

    Works on a copy of the module, since Opacus hooks into what it differentiates.

    Args:
        flat: the model; its present parameters count, whenever they change.

    Raises:
        ValueError: the model keeps statistics over batches, or has layers that Opacus refuses.
    """

    def __init__(self, flat: FlatModel) -> None:
        # Opacus takes seconds to import, and most algorithms never clip per sample.
        from opacus.grad_sample import GradSampleModule

        # Its hooks on the first layer, whose input needs no gradient, are meant to fire.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        kind = type(flat.module).__name__
        if flat.num_buffers:
            raise ValueError(
                f"model={kind}: keeps statistics over batches, in which examples mix; DP-SGD "
                "needs a model without batch normalisation, such as cnn_groupnorm"
            )
        self._flat = flat
        self._module = _without_dropout(flat)
        for layer in self._module.modules():
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_pre_hook(_channels_first)
        for parameter in self._module.parameters():
            parameter.grad = None
            parameter.data = parameter.data.clone()
        if unsupported := GradSampleModule.validate(self._module):
            raise ValueError(f"model={kind}: {unsupported[0]}")
        self._wrapped = GradSampleModule(self._module, loss_reduction="sum")
        self._first = _first(self._module)

    def load(self) -> None:
        """Take up the model's present parameters."""
        with torch.no_grad():
            for name, view in self._flat.views(self._flat.vector).items():
                self._module.get_parameter(name).copy_(view)

    def clipped_sum(self, images: Tensor, targets: Tensor, norm: float, views: int = 1) -> Tensor:
        """Σ of clipped gradients, float64 (d,), whole numbers in steps of ``norm``/2¹⁸.

        Args:
            images: (B·views, C, H, W) with 1 ≤ B·views ≤ 64, those of an example side by side.
            targets: distributions (B, classes).
            norm: the clipping norm.
            views: of each example; its gradient is their mean.
        """
        targets = targets.repeat_interleave(views, dim=0)
        x, weights = _pad(images, self._flat.vector.device)
        y = torch.zeros(len(x), targets.shape[1], device=x.device)
        y[: len(targets)] = targets.to(x.device)
        with torch.enable_grad():
            logits = self._wrapped(x)
        # The loss's own value is not needed, and its gradient is softmax - target.
        residual = torch.softmax(logits.detach(), dim=1).sub_(y).mul_(weights)
        torch.autograd.grad(logits, self._first, residual)
        samples = _take_samples(self._module)
        if views > 1:
            count = len(images) // views
            samples = {
                name: rows[: count * views].view(count, views, -1).mean(dim=1)
                for name, rows in samples.items()
            }
        factors = _factors(list(samples.values()), norm)
        total = torch.empty(self._flat.num_parameters, device=x.device)
        ones = torch.ones(1, len(factors), device=x.device)
        for name, view in self._flat.views(total).items():
            steps = samples[name].mul_(factors).trunc_()
            view.copy_((ones @ steps).view(view.shape))
        return total.double().cpu()


def require_separate_examples(trainer: Trainer) -> None:
    """ValueError where an example's outputs depend on the others in its batch, or on chance.

    One example could then move more than its own gradient, which alone is clipped. Asked of the
    initial model, before a run: it needs no data, and no server's parameters.
    """
    kind = type(trainer.flat.module).__name__
    module = _without_dropout(trainer.flat)
    for layer in module.modules():
        if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and _trained(layer):
            raise ValueError(
                f"model={kind}: DP-SGD has no per-sample gradients for {type(layer).__name__}; "
                "freeze it, or choose another model"
            )
    initial = torch.from_numpy(trainer.initial(np.random.default_rng(0)))
    with torch.no_grad():
        for name, view in trainer.flat.views(initial).items():
            module.get_parameter(name).data = view.to(trainer.flat.vector.device, copy=True)
        x = torch.linspace(0, 1, 4 * math.prod(trainer.input_shape)).view(4, *trainer.input_shape)
        x = x.to(trainer.flat.vector.device)
        outputs = []
        for seed, rest in enumerate((x[2:], x[:2].flip(0) / 2)):
            with seeded_torch(seed):
                outputs.append(module(torch.cat([x[:2], rest]))[:2])
    if not torch.allclose(outputs[0], outputs[1], 1e-3, 1e-4):
        raise ValueError(
            f"model={kind}: what it says of an example depends on the others in its batch, or is "
            "drawn at random; DP-SGD needs a model without batch normalisation and without "
            "dropout of its own making, such as cnn_groupnorm"
        )


def _without_dropout(flat: FlatModel) -> nn.Module:
    """A copy of the module in training mode, but that it drops nothing."""
    module = copy.deepcopy(flat.module)
    flat.train(module)
    for layer in module.modules():
        if isinstance(layer, Dropout | nn.modules.dropout._DropoutNd):
            layer.eval()
    return module


def _channels_first(layer: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """What a convolution must see, for Opacus (1.6) takes its strides for granted.

    From an input that is channels-last, as ``FlatModel`` has it, wrong gradients would come
    without a word. Everything else stays channels-last, where pooling is several times faster.
    """
    return (inputs[0].contiguous(),)


def _first(module: nn.Module) -> list[Tensor]:
    """Parameters whose gradient makes autograd pass every layer.

    In a sequence one of the first layer's is enough, which spares the mean gradients of all the
    others; its own bias is the cheapest.
    """
    if not isinstance(module, nn.Sequential):
        return _trained(module)
    layer = next(layer for layer in module if _trained(layer))
    return _trained(layer)[-1:]


def _trained(module: nn.Module) -> list[Tensor]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _take_samples(module: nn.Module) -> dict[str, Tensor]:
    """The per-sample gradients (B, entries) that Opacus left, by parameter."""
    samples = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        samples[name] = parameter.grad_sample.flatten(1)  # type: ignore[attr-defined]
        parameter.grad_sample = None  # type: ignore[attr-defined]
    return samples


def _factors(gradients: list[Tensor], norm: float) -> Tensor:
    """What takes each example's gradient to the grid, no longer than 2¹⁸ steps: (B, 1)."""
    parts = [part for gradient in gradients for part in gradient.split(_COLUMNS, dim=1)]
    norms = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in parts]).double()
    lengths = torch.linalg.vector_norm(norms, dim=0)
    broken = ~torch.isfinite(lengths)
    if broken.any():
        for gradient in gradients:
            gradient[broken] = 0
        lengths[broken] = 0
    return (SENSITIVITY * _SAFE / lengths.clamp_(min=norm)).float()[:, None]


def _pad(images: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """``images`` up to a multiple of a few rows, and which of the rows count (B, 1)."""
    count = len(images)
    size = -(-count // _PADDED) * _PADDED
    x = torch.zeros(size, *images.shape[1:], device=device)
    x[:count] = images
    weights = torch.zeros(size, 1, device=device)
    weights[:count] = 1
    return x, weights
