"""What moves a model: the protocol, PyTorch's autograd as the general way, and the choice.

Faster backends come from installed packages (``process.kernels``); without one, autograd does
all the work.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from murmur.learning.objective import CLASSIFICATION, Objective
from murmur.learning.process import has_bfloat16, has_kernels, kernels
from murmur.learning.training.losses import residuals
from murmur.learning.training.optimiser import Optimisation
from murmur.learning.training.parameters import FlatModel
from murmur.learning.training.stack import ManyClients, TrainSingle
from murmur.random import seeded_torch

Precision = Literal["fp32", "bf16", "auto"]
InferenceFn = Callable[[int], Callable[[Tensor], Tensor]]
"""Makes, for B images at a time and one thread, what computes their logits (B, num_classes).

Images are (B, C, H, W), channels-last.
"""


class Backend(ABC):
    """How ``training.trainer.Trainer`` moves a model; a module may bring its own as ``backend``.

    Images, targets and parameters are given as everybody has them. What a backend likes better
    (another order of parameters, a column of ones beside each image) it arranges by itself, in
    ``batch_buffer``, ``training`` and ``to_layout``, and nobody else depends on it.

    Args:
        flat: the model.
        input_shape: (channels, height, width).
    """

    def __init__(self, flat: FlatModel, input_shape: tuple[int, int, int]) -> None:
        self._flat = flat
        self._input_shape = input_shape

    def batch_buffer(self, count: int) -> tuple[Tensor, Tensor]:
        """Memory for ``count`` images, as this backend reads it and as it is written.

        Returns:
            What slices along the first axis are batches for ``gradient`` and ``sgd_step``; and the
            same memory seen as images (count, C, H, W). Here both are one, channels-last.
        """
        channels, height, width = self._input_shape
        images = self._flat.vector.new_empty(count, height, width, channels).permute(0, 3, 1, 2)
        return images, images

    @contextmanager
    def training(self, rng: np.random.Generator) -> Iterator[Tensor]:
        """The context of one call of ``Trainer.train``; gives the vector (d,) that its steps move.

        At the beginning it holds the model's parameters, in this backend's own order; at the end
        the model gets them.

        Args:
            rng: seeds PyTorch's generator, from which a user's own layers may draw; what it gives
                later does not depend on that.
        """
        seed = int(rng.bit_generator.jumped().random_raw()) >> 1  # type: ignore[attr-defined]
        with seeded_torch(seed), torch.no_grad():
            yield self._flat.vector

    def to_layout(self, vector: Tensor) -> Tensor:
        """A copy of a vector (d,) of the model's order, in that of what ``training`` gives."""
        return vector.clone()

    @abstractmethod
    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """The gradient (d,) of a batch's mean cross-entropy, valid until the next call.

        Args:
            x: B images, a slice of ``batch_buffer``.
            y: float32 (B, classes), the target distributions.

        Returns:
            Laid out as what ``training`` gives; the caller may overwrite it.
        """

    @abstractmethod
    def sgd_step(self, x: Tensor, y: Tensor, lr: float, weight_factor: float) -> None:
        """One plain step: w ← weight_factor·w − lr·gradient."""

    def lockstep(self, train_single: TrainSingle) -> ManyClients | None:
        """Trains many clients at once, to the bits of ``train_single``; None where it cannot."""
        return None

    def after_step(self, how: Optimisation) -> None:  # noqa: B027
        """Whatever a model needs after each step, of either kind. Nothing by default."""

    def inference_fn(self) -> InferenceFn:
        """Inference with the parameters as they are now."""
        return lambda batch: self._flat.module

    def release_buffers(self) -> None:  # noqa: B027
        """Let go of memory as large as the model until the next training. Nothing by default."""


class AutogradBackend(Backend):
    """Works for any module, and the only one for tasks without classes.

    Args:
        flat: the model.
        input_shape: (channels, height, width).
        objective: the task.
    """

    def __init__(
        self,
        flat: FlatModel,
        input_shape: tuple[int, int, int],
        objective: Objective = CLASSIFICATION,
    ) -> None:
        super().__init__(flat, input_shape)
        self._objective = objective

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """See ``Backend``."""
        gradient = self._flat.gradient.zero_()
        with torch.enable_grad():
            logits = self._flat.module(x)
        # The loss's own value is not needed.
        logits.backward(residuals(self._objective, logits.detach(), y).div_(len(x)))
        return gradient

    def sgd_step(self, x: Tensor, y: Tensor, lr: float, weight_factor: float) -> None:
        """See ``Backend``."""
        gradient = self.gradient(x, y)
        if weight_factor != 1:
            self._flat.vector.mul_(weight_factor)
        self._flat.vector.sub_(gradient, alpha=lr)


def backend_for(
    flat: FlatModel,
    input_shape: tuple[int, int, int],
    fused: bool,
    precision: Precision,
    objective: Objective = CLASSIFICATION,
) -> Backend:
    """The fastest backend that does what is asked; a model may bring its own.

    Args:
        flat: the model.
        input_shape: (channels, height, width).
        fused: whether a convolution may be compiled with what follows it.
        precision: ``bf16`` to compute in bfloat16; ``auto``: where model and processor can.
        objective: the task; hand-written gradients and a model's own are those of cross-entropy.

    Raises:
        ValueError: ``precision`` is bf16, and the processor or the model cannot; or the model
            brings a backend of its own, and the task has no classes.
    """
    if not objective.has_classes:
        if precision == "bf16":
            raise ValueError(f"precision=bf16: is for classes, and task={objective.kind}; use fp32")
        if hasattr(flat.module, "backend"):
            raise ValueError(
                f"model={type(flat.module).__name__}: trains in a way of its own, which knows "
                f"classes only; choose another model for task={objective.kind}"
            )
        return AutogradBackend(flat, input_shape, objective)
    sequences = _kernels_for(flat.module)
    half = False
    if precision != "fp32":
        obstacle = _obstacle_to_bfloat16(flat, sequences)
        if precision == "bf16" and obstacle is not None:
            raise ValueError(f"precision=bf16: {obstacle}; use fp32")
        half = obstacle is None
    if sequences is not None:
        backend: Backend = sequences.ManualBackend(flat, input_shape, fused, half)
        return backend
    make = getattr(flat.module, "backend", AutogradBackend)
    return make(flat, input_shape)


def _kernels_for(module: nn.Module) -> ModuleType | None:
    """Kernels for a plain sequence of layers; None where ``module`` is no such sequence."""
    if hasattr(module, "backend"):
        return None
    sequences = kernels("sequences")
    if sequences is None or not sequences.supports(module):
        return None
    return sequences


def _obstacle_to_bfloat16(flat: FlatModel, sequences: ModuleType | None) -> str | None:
    """Why nothing of this model can be computed in bfloat16 here; None where something can."""
    if not flat.vector.is_cpu:
        return "is for processors, where a GPU has compute.mixed_precision"
    if not has_kernels():
        return "is done by murmur-kernels, which is not installed"
    if not has_bfloat16():
        return "this processor does not compute in bfloat16"
    if sequences is None or not sequences.gains_by_bfloat16(flat.module):
        return (
            "is for plain sequences of layers with a second convolution of stride 1, or a second "
            "linear layer of 512 × 512 weights or more"
        )
    return None
