"""Per-sample gradients of a model, clipped and rounded towards zero onto an integer grid.

The gradients are those of Opacus (``GradSampleModule``). Rounding towards zero lets no coordinate
grow, so that one example adds an integer vector of norm at most ``SENSITIVITY`` to a sum, exactly,
in any number of dimensions; and the sums are exact in whatever order they are made.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from murmur.learning.kernels.flat import FlatModel
from murmur.learning.layers import Dropout

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
        flat: the model; its present parameters count, whenever they change. Its buffers are
            constants (``Trainer.statistics`` is empty).

    Raises:
        ValueError: the model has layers that Opacus refuses.
    """

    def __init__(self, flat: FlatModel) -> None:
        # Opacus takes seconds to import, and most algorithms never clip per sample.
        from murmur.learning.training.grad_samples import HookedModule

        kind = type(flat.module).__name__
        self._flat = flat
        self._module = without_dropout(flat)
        for layer in self._module.modules():
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_pre_hook(_channels_first)
            _keep_constants(layer)
        for parameter in self._module.parameters():
            parameter.grad = None
            parameter.data = parameter.data.clone()
        try:
            self._wrapped = HookedModule(self._module)
        except (NotImplementedError, ValueError) as error:
            raise ValueError(f"model={kind}: {error}") from error
        self._first = _first(self._module)

    def load(self) -> None:
        """Take up the model's present parameters."""
        with torch.no_grad():
            for name, view in self._flat.views(self._flat.vector).items():
                self._module.get_parameter(name).copy_(view)

    def samples(self, x: Tensor, y: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """The gradient of every example's cross-entropy, (B, entries) for each parameter.

        Args:
            x: images (B, C, H, W).
            y: distributions (B, classes).
            weights: (B, 1), which each gradient is multiplied by.
        """
        with torch.enable_grad():
            logits = self._wrapped(x)
        # The loss's own value is not needed, and its gradient is softmax - target.
        residual = torch.softmax(logits.detach(), dim=1).sub_(y).mul_(weights)
        torch.autograd.grad(logits, self._first, residual, allow_unused=True)
        return _take_samples(self._module, len(x))

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
        samples = self.samples(x, y, weights)
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


def without_dropout(flat: FlatModel) -> nn.Module:
    """A copy of the module in training mode, but that it drops nothing."""
    module = copy.deepcopy(flat.module)
    flat.train(module)
    for layer in module.modules():
        if isinstance(layer, Dropout | nn.modules.dropout._DropoutNd):
            layer.eval()
    return module


def _keep_constants(layer: nn.Module) -> None:
    """Plain tensors for buffers, which Opacus takes for statistics, whatever they hold."""
    for name, buffer in list(layer.named_buffers(recurse=False)):
        delattr(layer, name)
        setattr(layer, name, buffer)


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
        return trained(module)
    layer = next(layer for layer in module if trained(layer))
    return trained(layer)[-1:]


def trained(module: nn.Module) -> list[Tensor]:
    """The parameters that train."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _take_samples(module: nn.Module, count: int) -> dict[str, Tensor]:
    """The per-sample gradients (count, entries) that Opacus left, by parameter; 0 where none."""
    samples = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        found: Tensor | None = parameter.grad_sample  # type: ignore[attr-defined]
        if found is None:  # no output depends on it
            found = torch.zeros(count, parameter.numel(), device=parameter.device)
        samples[name] = found.flatten(1)
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
