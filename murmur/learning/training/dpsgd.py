"""DP-SGD: clipped per-sample gradients on an integer grid, over lots drawn by Poisson sampling.

Abadi et al., "Deep learning with differential privacy", CCS 2016, algorithm 1. One step:

1. every example joins the lot by itself with probability q            (``sample``, the caller's)
2. g_i ← ∇ℓ(w, x_i, y_i) / max(1, ‖g_i‖/C), then towards zero onto the grid C/2¹⁸
3. w ← w − η · (Σ_i g_i + noise) / (q·n)                              (``perturb``, the caller's)

Noise on integers has no low bits that leak, which noise on floats has. The lots and the noise come
in as functions, because whoever could predict either of them could undo the protection.

What is proven takes a per-sample gradient as a function of its example and the model alone.
PyTorch's kernels hold to that up to the last bits, which may depend on the size of a batch;
batches of a few fixed sizes (padded with examples of weight zero) keep even that rare. Where
products are rounded to TF32 or bfloat16 it would be the first digits: refused (``precision``).

The per-sample gradients are those of Opacus (``grad_samples``), summed by ``clipped_sums``.
Rounding towards zero lets no coordinate grow, so that one example adds an integer vector of norm at
most ``SENSITIVITY`` to a sum, exactly, in any number of dimensions; and the sums are exact in
whatever order they are made.
"""

import copy
import itertools
import math
from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from murmur.learning.models import Dropout
from murmur.learning.objective import CLASSIFICATION, Objective
from murmur.learning.training import batches
from murmur.learning.training.clipped_sums import ClippedSums, Gradients, Products, made
from murmur.learning.training.losses import residuals
from murmur.learning.training.parameters import FlatModel
from murmur.learning.training.precision import require_float32
from murmur.learning.training.trainer import Trainer
from murmur.settings import Count, Decay, Positive, settings

SENSITIVITY = 1 << 18
"""L2 norm of the longest gradient on the grid: the clipping norm, in grid steps."""

CHUNK_EXAMPLES = 64
"""Examples at a time; sums of so many coordinates of at most 2¹⁸ are exact in float32."""

# Few different sizes of a batch, so that kernels are planned once.
_PADDED = 16
_FAR = 2  # pixels that an image is moved at most
SHIFTS = sorted(
    itertools.product(range(-_FAR, _FAR + 1), repeat=2),
    key=lambda shift: (math.hypot(*shift), shift),
)
"""Down and right in pixels, the image itself first, then by distance."""

Integers = NDArray[np.int64]
# Where float32's squares vanish, below 1e-19, a gradient of 10⁹ such entries is still shorter.
ClippingNorm = Annotated[float, Field(ge=1e-9, allow_inf_nan=False)]
Sample = Callable[[int], NDArray[np.bool_]]
Perturb = Callable[[Integers], Integers]


@settings
class DpSgd:
    """Settings of DP-SGD.

    The last two are means of De et al., "Unlocking high-accuracy differentially private image
    classification through scale" (2022), that cost no privacy.

    Attributes:
        lot_size: L, the expected number of examples in a step, at least 1.
        clipping_norm: C, finite and at least 1e-9.
        learning_rate: η, finite and above 0.
        views: how many of an image and its shifts by a pixel or two are seen; their mean gradient
            is the example's (augmentation multiplicity). 1 to 25.
        average: decay of an exponential moving average of the weights, which is what remains, in
            [0, 1). 0: the last weights.

    Raises:
        ValueError: a setting is out of range.
    """

    lot_size: Count
    clipping_norm: ClippingNorm
    learning_rate: Positive
    views: Annotated[int, Field(ge=1, le=len(SHIFTS))] = 1
    average: Decay = 0.0

    def train(
        self,
        trainer: Trainer,
        images: batches.Images,
        labels: batches.Labels,
        *,
        steps: int,
        sample: Sample,
        perturb: Perturb,
        indices: batches.Indices | None = None,
        size: int | None = None,
        soft_targets: bool = False,
    ) -> None:
        """Minimise the task's mean loss from the trainer's present parameters, in place.

        Dropout is off. An example whose gradient is not finite counts as 0.

        Args:
            trainer: its model must not keep statistics over batches.
            images: float32 (N, C, H, W); may be a read-only memory map.
            labels: int64 (N,), or float32 (N, num_classes) if ``soft_targets``; of another task as
                it has them.
            steps: number of steps.
            sample: given n, which of the n examples are in the next lot; each independently with
                probability min(1, L/n), unpredictable to whoever the noise protects from.
            perturb: the noisy version of a sum (d,) in grid steps, of L2 sensitivity
                ``SENSITIVITY``.
            indices: which of the N examples are the data; all if None.
            size: how many there are by what is public; None: as many as there are.
            soft_targets: whether labels are distributions.

        Raises:
            ValueError: an argument is of the wrong shape, or the model cannot be trained so.
            PrecisionError: this machine rounds float32 products.
        """
        require_constants(trainer)
        flat = trainer.flat
        require_float32(flat.vector.device)
        chosen = batches.index_tensor(indices, len(images))
        shape = (len(images), trainer.num_classes)
        targets = batches.target_rows(labels, chosen, shape, soft_targets, trainer.objective)
        source = batches.as_tensor(images)
        rows = torch.arange(len(images)) if chosen is None else chosen
        mean_lot = min(self.lot_size, len(rows) if size is None else size)
        scale = self.clipping_norm / (SENSITIVITY * mean_lot)
        gradients = PerSampleGradients(flat, trainer.objective)
        averaged = flat.vector.clone()
        for step in range(steps):
            lot = torch.from_numpy(np.flatnonzero(sample(len(rows))))
            total = torch.zeros(flat.num_parameters, dtype=torch.float64)
            gradients.load()
            for part in lot.split(max(1, CHUNK_EXAMPLES // self.views)) if len(lot) else ():
                images_seen = shifted(source[rows[part]], self.views)
                total += gradients.clipped_sum(
                    images_seen, targets[part], self.clipping_norm, self.views
                )
            noisy = perturb(total.to(torch.int64).numpy())
            gradient = torch.from_numpy(noisy * scale).to(flat.vector)
            flat.vector.sub_(gradient, alpha=self.learning_rate)
            if self.average:
                # A decay that grows, or the average would remember the first weights.
                decay = min(self.average, (1 + step) / (10 + step))
                averaged.lerp_(flat.vector, 1 - decay)
        if self.average:
            flat.vector.copy_(averaged)


def shifted(images: Tensor, views: int) -> Tensor:
    """The first ``views`` shifts of every image (B, C, H, W), all of an image side by side."""
    if views == 1:
        return images
    _, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (_FAR,) * 4)
    found = [
        padded[:, :, _FAR + down : _FAR + down + height, _FAR + right : _FAR + right + width]
        for down, right in SHIFTS[:views]
    ]
    return torch.stack(found, dim=1).flatten(0, 1)


def require_constants(trainer: Trainer) -> None:
    """ValueError where training changes a buffer, which no clipping and no noise reaches."""
    if trainer.statistics:
        kind = type(trainer.flat.module).__name__
        raise ValueError(
            f"model={kind}: keeps statistics over batches, in which examples mix (training changes "
            f"its buffer {trainer.statistics[0]}); DP-SGD needs a model without batch "
            "normalisation, such as cnn_groupnorm"
        )


class PerSampleGradients:
    """Clipped per-sample gradients of a model, summed on the grid.

    Works on a copy of the module, since Opacus hooks into what it differentiates.

    Args:
        flat: the model; its present parameters count, whenever they change. Its buffers are
            constants (``Trainer.statistics`` is empty).
        objective: the task.

    Raises:
        ValueError: the model has layers that Opacus refuses.
    """

    def __init__(self, flat: FlatModel, objective: Objective = CLASSIFICATION) -> None:
        # Opacus takes seconds to import, and most algorithms never clip per sample.
        from murmur.learning.training.grad_samples import HookedModule

        self._sums = ClippedSums(flat.vector.device)
        kind = type(flat.module).__name__
        self._flat = flat
        self._objective = objective
        self._module = without_dropout(flat)
        for layer in self._module.modules():
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_pre_hook(_channels_first)
            _keep_constants(layer)
        for parameter in self._module.parameters():
            parameter.grad = None
            parameter.data = _channels_last(parameter.data)
        try:
            self._wrapped = HookedModule(self._module, self._sums.kernels)
        except ValueError as error:
            raise ValueError(f"model={kind}: {error}") from error
        self._first = _first(self._module)

    def load(self) -> None:
        """Take up the model's present parameters."""
        with torch.no_grad():
            for name, view in self._flat.views(self._flat.vector).items():
                self._module.get_parameter(name).copy_(view)

    def samples(self, x: Tensor, y: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """The gradient of every example's loss, (B, entries) for each parameter.

        Args:
            x: images (B, C, H, W).
            y: targets (B, outputs).
            weights: (B, 1), which each gradient is multiplied by.
        """
        found = self._found(x, y, weights)
        return {name: made(gradients) for name, gradients in found.items()}

    def clipped_sum(self, images: Tensor, targets: Tensor, norm: float, views: int = 1) -> Tensor:
        """Σ of clipped gradients, float64 (d,), whole numbers in steps of ``norm``/2¹⁸.

        Args:
            images: (B·views, C, H, W) with 1 ≤ B·views ≤ 64, those of an example side by side.
            targets: (B, outputs).
            norm: the clipping norm.
            views: of each example; its gradient is their mean.
        """
        targets = targets.repeat_interleave(views, dim=0)
        x, weights = _pad(images, self._flat.vector.device)
        y = torch.zeros(len(x), targets.shape[1], device=x.device)
        y[: len(targets)] = targets.to(x.device)
        found = self._found(x, y, weights)
        if views > 1:
            count = len(images) // views
            found = {
                name: made(gradients)[: count * views].view(count, views, -1).mean(dim=1)
                for name, gradients in found.items()
            }
        factors = self._sums.factors(list(found.values()), norm, SENSITIVITY)
        total = torch.zeros(self._flat.num_parameters, device=x.device)
        for name, view in self._flat.views(total).items():
            self._sums.add(found[name], factors, view)
        return total.double().cpu()

    def _found(self, x: Tensor, y: Tensor, weights: Tensor) -> dict[str, Gradients]:
        """``samples``, but that a linear layer's may be unmade."""
        with torch.enable_grad():
            logits = self._wrapped(x)
        # The loss's own value is not needed.
        residual = residuals(self._objective, logits.detach(), y).mul_(weights)
        torch.autograd.grad(logits, self._first, residual, allow_unused=True)
        return _take_samples(self._module, len(x))


def without_dropout(flat: FlatModel) -> nn.Module:
    """A copy of the module in training mode, but that it drops nothing; its gradients are dense."""
    module = copy.deepcopy(flat.module)
    flat.train(module)
    for layer in module.modules():
        if isinstance(layer, Dropout | nn.modules.dropout._DropoutNd):
            layer.eval()
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.sparse = False
    return module


def _keep_constants(layer: nn.Module) -> None:
    """Plain tensors for buffers, which Opacus takes for statistics, whatever they hold."""
    for name, buffer in list(layer.named_buffers(recurse=False)):
        delattr(layer, name)
        setattr(layer, name, buffer)


def _channels_first(layer: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """Make a convolution's input channels-first, since Opacus (1.6) takes its strides for granted.

    From an input that is channels-last wrong gradients would come without a word. What it gives is
    channels-last, as its weight is (``_channels_last``), since pooling is then several times
    faster.
    """
    return (inputs[0].contiguous(),)


def _channels_last(parameter: Tensor) -> Tensor:
    """A copy of its own memory; that of a convolution's weight has the channels last."""
    if parameter.dim() == 4:
        return parameter.clone(memory_format=torch.channels_last)
    return parameter.clone()


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


def _take_samples(module: nn.Module, count: int) -> dict[str, Gradients]:
    """The per-sample gradients that the backward pass left, by parameter; 0 where none."""
    samples: dict[str, Gradients] = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        found: Gradients | None = parameter.grad_sample  # type: ignore[attr-defined]
        if found is None:  # no output depends on it
            found = torch.zeros(count, parameter.numel(), device=parameter.device)
        if not isinstance(found, Products) or len(found.inputs) != count:
            found = made(found).reshape(count, -1)  # of a single number, too
        samples[name] = found
        parameter.grad_sample = None  # type: ignore[attr-defined]
    return samples


def _pad(images: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """``images`` up to a multiple of a few rows, and which of the rows count (B, 1)."""
    count = len(images)
    size = -(-count // _PADDED) * _PADDED
    x = torch.zeros(size, *images.shape[1:], device=device)
    x[:count] = images
    weights = torch.zeros(size, 1, device=device)
    weights[:count] = 1
    return x, weights
