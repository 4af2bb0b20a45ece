"""DP-SGD: clipped per-sample gradients on an integer grid, over lots drawn by Poisson sampling.

Abadi et al., "Deep learning with differential privacy", CCS 2016, algorithm 1. One step:

1. every example joins the lot by itself with probability q            (``sample``, the caller's)
2. g_i ← ∇ℓ(w, x_i, y_i) / max(1, ‖g_i‖/C), then towards zero onto the grid C/2¹⁶
3. w ← w − η · (Σ_i g_i + noise) / (q·n)                              (``perturb``, the caller's)

Per-sample gradients are those of Opacus (``GradSampleModule``). Two things differ from its
optimiser. Rounding goes towards zero, so that no coordinate grows and an example adds an integer
vector of norm at most ``SENSITIVITY`` = 2¹⁶ to the sum, exactly, in any number of dimensions;
noise on integers has no low bits that leak. And the lots and the noise come in as functions,
because whoever could predict either of them could undo the protection.

What is proven takes a per-sample gradient as a function of its example and the model alone.
PyTorch's kernels hold to that up to the last bits, which may depend on the size of a batch;
batches of a few fixed sizes (padded with examples of weight zero) keep even that rare.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from learning.batches import index_tensor, target_matrix
from learning.flat import FlatModel
from learning.layers import Dropout
from learning.memory import as_tensor
from learning.trainer import Images, Indices, Labels, Trainer

SENSITIVITY = 1 << 16
"""L2 sensitivity of a step's sum, in grid steps: the clipping norm."""

Integers = NDArray[np.int64]
Sample = Callable[[int], NDArray[np.bool_]]
Perturb = Callable[[Integers], Integers]

# Sums of so many coordinates of at most 2¹⁶ are exact in float32, in whatever order.
_CHUNK = 64
_PADDED = 16
# A float32 norm of so many entries is off by less than their number times 2⁻²⁴, in whatever order.
_COLUMNS = 1 << 12
_SAFE = 1 - (_COLUMNS + 16) * 2.0**-24


@dataclass(frozen=True)
class DpSgd:
    """Settings of DP-SGD on ``count`` examples.

    ``lot_size``: the expected number of examples in a step, L; ``clipping_norm``: C;
    ``learning_rate``: η. Raises ValueError for settings out of range.
    """

    lot_size: int
    clipping_norm: float
    learning_rate: float

    def __post_init__(self) -> None:
        if self.lot_size < 1:
            raise ValueError(f"lot_size={self.lot_size}: must be at least 1")
        for name in ("clipping_norm", "learning_rate"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name}={value}: must be finite and above 0")

    def rate(self, count: int) -> float:
        """The sampling rate q = L/n, at most 1."""
        return min(1.0, self.lot_size / count)

    def steps(self, count: int, epochs: int) -> int:
        """Steps in which ``epochs`` · ``count`` examples are expected: ⌈epochs · n/L⌉."""
        return max(1, math.ceil(epochs * count / self.lot_size))

    def train(
        self,
        trainer: Trainer,
        images: Images,
        labels: Labels,
        *,
        steps: int,
        sample: Sample,
        perturb: Perturb,
        indices: Indices | None = None,
        soft_targets: bool = False,
    ) -> None:
        """Minimise the mean cross-entropy from the trainer's present parameters, in place.

        Dropout is off. An example whose gradient is not finite counts as 0.

        Args:
            trainer: its model must not keep statistics over batches.
            images: float32 (N, C, H, W); may be a read-only memory map.
            labels: int64 (N,), or float32 (N, num_classes) if ``soft_targets``.
            steps: number of steps.
            sample: given n, which of the n examples are in the next lot; each independently with
                probability ``rate(n)``, unpredictable to whoever the noise protects from.
            perturb: the noisy version of a sum (d,) in grid steps, of L2 sensitivity
                ``SENSITIVITY``.
            indices: which of the N examples are the data; all if None.
            soft_targets: whether labels are distributions.

        Raises:
            ValueError: an argument is of the wrong shape, or the model cannot be trained so.
        """
        flat = trainer.flat
        chosen = index_tensor(indices, len(images))
        targets = target_matrix(labels, chosen, (len(images), trainer.num_classes), soft_targets)
        source, targets = as_tensor(images), targets.t().contiguous()
        rows = torch.arange(len(images)) if chosen is None else chosen
        scale = self.clipping_norm / (SENSITIVITY * self.rate(len(rows)) * len(rows))
        gradients = PerSampleGradients(flat)
        for _ in range(steps):
            lot = torch.from_numpy(np.flatnonzero(sample(len(rows))))
            total = torch.zeros(flat.num_parameters, dtype=torch.float64)
            gradients.load()
            for part in lot.split(_CHUNK) if len(lot) else ():
                total += gradients.clipped_sum(
                    source[rows[part]], targets[part], self.clipping_norm
                )
            noisy = perturb(total.to(torch.int64).numpy())
            gradient = torch.from_numpy(noisy * scale).to(flat.vector)
            flat.vector.sub_(gradient, alpha=self.learning_rate)


class PerSampleGradients:
    """Clipped per-sample gradients of a model, summed on the grid.

    Works on a copy of the module: Opacus hooks into what it differentiates, and its convolutions
    are wrong, without a word, for the channels-last layout of ``FlatModel`` (``unfold2d`` of 1.6
    takes strides for granted).

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
        self._module = copy.deepcopy(flat.module).train()
        for layer in self._module.modules():
            if isinstance(layer, Dropout):
                layer.eval()
        for parameter in self._module.parameters():
            parameter.grad = None
            # Not contiguous(), which leaves a single channel's ambiguous strides as they are.
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
        try:
            self._wrapped = GradSampleModule(self._module, loss_reduction="sum")
        except NotImplementedError as error:
            raise ValueError(f"model={kind}: {error}") from error
        self._first = _first(self._module)

    def load(self) -> None:
        """Take up the model's present parameters."""
        with torch.no_grad():
            for name, view in self._flat.views(self._flat.vector).items():
                self._module.get_parameter(name).copy_(view)

    def clipped_sum(self, images: Tensor, targets: Tensor, norm: float) -> Tensor:
        """Σ of clipped gradients, float64 (d,), whole numbers in steps of ``norm``/2¹⁶.

        Args:
            images: (B, C, H, W) with 1 ≤ B ≤ 64.
            targets: distributions (B, classes).
            norm: the clipping norm.
        """
        x, weights = _pad(images, self._flat.vector.device)
        y = torch.zeros(len(x), targets.shape[1], device=x.device)
        y[: len(targets)] = targets.to(x.device)
        with torch.enable_grad():
            logits = self._wrapped(x)
        # The loss's own value is not needed, and its gradient is softmax - target.
        residual = torch.softmax(logits.detach(), dim=1).sub_(y).mul_(weights)
        torch.autograd.grad(logits, self._first, residual)
        samples = _take_samples(self._module)
        factors = _factors(list(samples.values()), norm)
        total = torch.empty(self._flat.num_parameters, device=x.device)
        ones = torch.ones(1, len(x), device=x.device)
        for name, view in self._flat.views(total).items():
            steps = samples[name].mul_(factors).trunc_()
            view.copy_((ones @ steps).view(view.shape))
        return total.double().cpu()


def _first(module: nn.Module) -> list[Tensor]:
    """Parameters whose gradient makes autograd pass every layer.

    In a sequence one of the first layer's is enough, which spares the mean gradients of all the
    others; its own bias is the cheapest.
    """
    parameters = list(module.parameters())
    if not isinstance(module, nn.Sequential):
        return list(parameters)
    layer = next(layer for layer in module if next(layer.parameters(), None) is not None)
    return [list(layer.parameters())[-1]]


def _take_samples(module: nn.Module) -> dict[str, Tensor]:
    """The per-sample gradients (B, entries) that Opacus left, by parameter."""
    samples = {}
    for name, parameter in module.named_parameters():
        samples[name] = parameter.grad_sample.flatten(1)  # type: ignore[attr-defined]
        parameter.grad_sample = None  # type: ignore[attr-defined]
    return samples


def _factors(gradients: list[Tensor], norm: float) -> Tensor:
    """What takes each example's gradient to the grid, no longer than 2¹⁶ steps: (B, 1)."""
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
