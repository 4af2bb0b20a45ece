"""DP-SGD: clipped per-sample gradients on an integer grid, over lots drawn by Poisson sampling.

Abadi et al., "Deep learning with differential privacy", CCS 2016, algorithm 1. One step:

1. every example joins the lot by itself with probability q            (``sample``, the caller's)
2. g_i ← ∇ℓ(w, x_i, y_i) / max(1, ‖g_i‖/C), then towards zero onto the grid C/2¹⁸
3. w ← w − η · (Σ_i g_i + noise) / (q·n)                              (``perturb``, the caller's)

Noise on integers has no low bits that leak, which noise on floats has. The lots and the noise come
in as functions, because whoever could predict either of them could undo the protection.

What is proven takes a per-sample gradient as a function of its example and the model alone.
PyTorch's kernels hold to that up to the last bits, which may depend on the size of a batch;
batches of a few fixed sizes (padded with examples of weight zero) keep even that rare.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from murmur.learning.kernels.per_sample import CHUNK, SENSITIVITY, PerSampleGradients
from murmur.learning.training.batches import index_tensor, target_matrix
from murmur.learning.training.memory import as_tensor
from murmur.learning.training.per_sample_trial import require_constants
from murmur.learning.training.trainer import Images, Indices, Labels, Trainer

_FAR = 2  # pixels that an image is moved at most
SHIFTS = sorted(
    itertools.product(range(-_FAR, _FAR + 1), repeat=2),
    key=lambda shift: (math.hypot(*shift), shift),
)
"""Down and right in pixels, the image itself first, then by distance."""

Integers = NDArray[np.int64]
Sample = Callable[[int], NDArray[np.bool_]]
Perturb = Callable[[Integers], Integers]


@dataclass(frozen=True)
class DpSgd:
    """Settings of DP-SGD on ``count`` examples.

    ``lot_size``: the expected number of examples in a step, L; ``clipping_norm``: C;
    ``learning_rate``: η. Two means of De et al., "Unlocking high-accuracy differentially private
    image classification through scale" (2022), that cost no privacy: ``views``, the image and its
    shifts by a pixel or two whose mean gradient is an example's (augmentation multiplicity), and
    ``average``, the decay of an exponential moving average of the weights, which is what remains
    (0: the last weights). Raises ValueError for settings out of range.
    """

    lot_size: int
    clipping_norm: float
    learning_rate: float
    views: int = 1
    average: float = 0.0

    def __post_init__(self) -> None:
        if self.lot_size < 1:
            raise ValueError(f"lot_size={self.lot_size}: must be at least 1")
        if not 1 <= self.views <= len(SHIFTS):
            raise ValueError(f"views={self.views}: must lie in 1..{len(SHIFTS)}")
        if not 0 <= self.average < 1:
            raise ValueError(f"average={self.average}: must lie in [0, 1)")
        for name in ("clipping_norm", "learning_rate"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name}={value}: must be finite and above 0")

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
                probability min(1, L/n), unpredictable to whoever the noise protects from.
            perturb: the noisy version of a sum (d,) in grid steps, of L2 sensitivity
                ``SENSITIVITY``.
            indices: which of the N examples are the data; all if None.
            soft_targets: whether labels are distributions.

        Raises:
            ValueError: an argument is of the wrong shape, or the model cannot be trained so.
        """
        require_constants(trainer)
        flat = trainer.flat
        chosen = index_tensor(indices, len(images))
        targets = target_matrix(labels, chosen, (len(images), trainer.num_classes), soft_targets)
        source, targets = as_tensor(images), targets.t().contiguous()
        rows = torch.arange(len(images)) if chosen is None else chosen
        scale = self.clipping_norm / (SENSITIVITY * min(self.lot_size, len(rows)))
        gradients = PerSampleGradients(flat)
        averaged = flat.vector.clone()
        for step in range(steps):
            lot = torch.from_numpy(np.flatnonzero(sample(len(rows))))
            total = torch.zeros(flat.num_parameters, dtype=torch.float64)
            gradients.load()
            for part in lot.split(max(1, CHUNK // self.views)) if len(lot) else ():
                images_seen = shifted(source[rows[part]], self.views)
                total += gradients.clipped_sum(
                    images_seen, targets[part], self.clipping_norm, self.views
                )
            noisy = perturb(total.to(torch.int64).numpy())
            gradient = torch.from_numpy(noisy * scale).to(flat.vector)
            flat.vector.sub_(gradient, alpha=self.learning_rate)
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
