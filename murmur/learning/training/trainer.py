"""Local training and inference, written once for every algorithm.

``Trainer.train`` is what a label passes: batches of it and its image (``batches``) move the
parameters (``parameters``) by a backend's steps (``backends``), which is PyTorch's autograd or, for
plain sequences of layers, hand-written (packages/murmur-kernels).
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache, partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from murmur.learning.metrics import Evaluation, evaluate_logits
from murmur.learning.models import Dropout, initialise
from murmur.learning.objective import CLASSIFICATION, Objective
from murmur.learning.process import MIN_LARGE_PARAMETERS
from murmur.learning.training import backends, batches, made_up, stack
from murmur.learning.training.optimiser import Adam, Optimisation
from murmur.learning.training.parameters import FlatModel
from murmur.random import seeded_torch


class Trainer:
    """One model, its flat parameters and its buffers: one per process, reset in place.

    Parameters cross this boundary as flat float32 vectors (d,) in the order of the model's own
    (``training.parameters``). Nothing that one call does changes the result of a later one, except
    through the parameters and buffers loaded.

    Args:
        model: called as ``model(input_shape, num_classes)``; a partial over a factory of
            ``murmur.learning.models``.
        input_shape: (channels, height, width) of an image.
        num_classes: number of logits, or of the task's other outputs.
        device: a PyTorch device.
        inference_threads: how many batches of ``logits`` are computed at a time; the results do
            not depend on it. PyTorch has one CPU thread for each, and one for training, which is
            fastest where there are as many workers as cores.
        mixed_precision: whether ``stack`` computes products in bfloat16.
        exact_stack: whether ``stack`` gives the very bits of one client after the other
            (``Backend.lockstep``), of tiny models on a CPU only.
        precision: ``fp32``, or ``bf16`` for convolutions and large linear layers after the
            first, while parameters and their updates stay float32; ``auto``: bf16 where it can be.
        fused: whether a convolution, its pooling and its activation are compiled together, where
            installed kernels can.
        objective: the task. Without classes there are no kernels and no ``stack``.

    Attributes:
        flat: the model itself, for those who need more of it than a mean gradient.
        stack: trains many clients at once; None where copies of this model cannot.

    Raises:
        ValueError: a setting is outside its range or the images are too small for the model.
    """

    def __init__(
        self,
        model: Callable[..., nn.Module],
        input_shape: tuple[int, int, int],
        num_classes: int,
        *,
        device: str = "cpu",
        inference_threads: int = 1,
        mixed_precision: bool = False,
        exact_stack: bool = False,
        fused: bool = False,
        precision: backends.Precision = "fp32",
        objective: Objective = CLASSIFICATION,
    ) -> None:
        self.input_shape = _input_shape(input_shape)
        if num_classes < objective.min_outputs:
            raise ValueError(f"num_classes={num_classes}: must be at least {objective.min_outputs}")
        if inference_threads < 1:
            raise ValueError(f"inference_threads={inference_threads}: must be at least 1")
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device={device}: no CUDA device is available; use cpu")
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)
        self.num_classes = num_classes
        self.objective = objective
        self._device = torch.device(device)
        self._make = partial(model, input_shape=self.input_shape, num_classes=num_classes)
        # PyTorch's layers draw from the global generator when built. Frozen ones stay as they are
        # built, so they must be the same in every process.
        with seeded_torch(0):
            module = self._make()
        self.flat = FlatModel(module, self._device)
        self._module = self.flat.module
        self._dropouts = [m for m in self._module.modules() if isinstance(m, Dropout)]
        self._backend = backends.backend_for(
            self.flat, self.input_shape, fused, precision, objective
        )
        self._images = batches.ResidentImages(self.input_shape, self._device)
        self._loader = batches.BatchLoader(self._backend.batch_buffer, self._device)
        self._inference_threads = inference_threads
        self.stack: stack.ManyClients | None = None
        if objective.has_classes and exact_stack:
            self.stack = self._backend.lockstep(self.train_single)
        elif objective.has_classes and stack.stackable(module):
            self.stack = stack.Stack(self.flat, self._images, num_classes, mixed_precision)

    @property
    def has_dropout(self) -> bool:
        """True if the model's training pass differs from its inference."""
        kinds = (Dropout, nn.modules.dropout._DropoutNd)
        return any(m.p > 0 for m in self._module.modules() if isinstance(m, kinds))

    @property
    def num_parameters(self) -> int:
        """d, the number of parameters."""
        return self.flat.num_parameters

    @cached_property
    def statistics(self) -> list[str]:
        """Names of the buffers that training changes (batch normalisation), by one made-up step."""
        return made_up.changed_buffers(self)

    def initial(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """The parameters (d,) to begin with, a function of ``rng`` only; the present ones are kept.

        A model that names a scheme in ``init`` is drawn by ``layers.initialise``. Any
        other begins with what its factory gives it, which may be pre-trained.
        """
        scheme = getattr(self._module, "init", None)
        if scheme is None:
            with seeded_torch(int(rng.integers(2**63))):
                return FlatModel(self._make()).vector.numpy()
        present = self.flat.vector.clone()
        initialise(self._module, rng, scheme)
        fresh = self.parameters()
        self.flat.vector.copy_(present)
        return fresh

    def load(self, parameters: NDArray[np.float32]) -> None:
        """Copy ``parameters`` (d,) into the model."""
        self.flat.load(parameters)

    def parameters(self) -> NDArray[np.float32]:
        """A copy of the parameters, (d,)."""
        return self.flat.vector.cpu().numpy().copy()

    def release_buffers(self) -> None:
        """Let go of what only training needs, until there is one."""
        self._backend.release_buffers()

    def train(
        self,
        images: batches.Images,
        labels: batches.Labels,
        *,
        rng: np.random.Generator,
        batch_size: int,
        lr: float,
        epochs: int | None = None,
        steps: int | None = None,
        indices: batches.Indices | None = None,
        optimizer: Literal["sgd", "adam"] = "sgd",
        betas: tuple[float, float] = (0.9, 0.999),
        proximal_mu: float = 0.0,
        anchor: NDArray[np.float32] | None = None,
        correction: NDArray[np.float32] | None = None,
        soft_targets: bool = False,
    ) -> NDArray[np.float32]:
        """Minimise the task's mean loss from the present parameters, in place.

        Each epoch visits the examples in a fresh order; the last batch may be smaller. Optimiser
        state starts afresh. The result is a function of the arguments and the present parameters,
        bit for bit.

        Args:
            images: float32 (N, C, H, W); may be a read-only memory map.
            labels: int64 (N,) classes, or float32 (N, num_classes) distributions if
                ``soft_targets``; of another task as it has them.
            rng: draws the orders and the dropout.
            batch_size: examples per step.
            lr: learning rate.
            epochs: number of passes; either this or ``steps``.
            steps: number of steps, over as many passes as that takes.
            indices: which of the N examples to train on; all if None.
            optimizer: ``sgd`` or ``adam``.
            betas: of Adam.
            proximal_mu: pull towards ``anchor``; see ``training.optimiser.Optimisation``.
            anchor: (d,); the parameters at the start of the call if None.
            correction: (d,), added to the gradient in every step (SCAFFOLD); nothing if None.
            soft_targets: whether labels are distributions.

        Returns:
            The parameters (d,) that the model then has.

        Raises:
            ValueError: an argument is outside its range or of the wrong shape.
        """
        how = Optimisation(lr, optimizer, betas, proximal_mu)
        source = self._images.tensor(images)
        chosen = batches.index_tensor(indices, len(images))
        shape = (len(images), self.num_classes)
        targets = batches.target_rows(labels, chosen, shape, soft_targets, self.objective)
        limit = batches.count_steps(epochs, steps, len(targets), batch_size)
        pulled_to = self._arranged("anchor", anchor)
        added = self._arranged("correction", correction)
        if chosen is not None:
            chosen = chosen.to(self._device)
        steps_ahead = self._loader.batches(
            source, targets.to(self._device), chosen, size=batch_size, steps=limit, rng=rng
        )
        if self._dropouts:
            bits = np.random.SFC64(rng.integers(2**63))  # a cheaper stream than ``rng`` itself
            for layer in self._dropouts:
                layer.bits = bits
        self.flat.train()
        backend = self._backend
        with backend.training(rng) as vector:
            if pulled_to is None:
                pulled_to = vector.clone() if proximal_mu else vector
            optimiser = Adam(vector) if how.optimizer == "adam" else None
            for x, y in steps_ahead:
                if optimiser is None:
                    backend.sgd_step(x, y, how.lr, how.weight_factor)
                    if how.pull:
                        vector.add_(pulled_to, alpha=how.pull)
                    if added is not None:
                        vector.sub_(added, alpha=how.lr)
                else:
                    gradient = backend.gradient(x, y)
                    if added is not None:
                        gradient.add_(added)
                    optimiser.step(vector, gradient, pulled_to, how)
                backend.after_step(how)
        if self.num_parameters >= MIN_LARGE_PARAMETERS:
            backend.release_buffers()
        return self.parameters()

    def train_single(
        self, images: batches.Images, labels: batches.Labels, share: stack.ClientBatch, **how: Any
    ) -> NDArray[np.float32]:
        """``train`` for one client's ``share`` of the examples; ``how``: its further settings."""
        self.load(share.start)
        return self.train(
            images,
            labels,
            indices=share.indices,
            rng=share.rng,
            correction=share.correction,
            **how,
        )

    def logits(self, images: batches.Images, batch_size: int = 128) -> NDArray[np.float32]:
        """The model's outputs (N, num_classes) in inference mode, ``batch_size`` images at a time.

        The last bits of an image's logits may depend on which images share its batch, but not on
        the number of threads. Memory beside the result is one batch for each.

        Raises:
            ValueError: ``batch_size`` is below 1, or the images are not (N, C, H, W).
        """
        self._images.check(images)
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be at least 1")
        self._module.eval()
        with torch.inference_mode():
            make = self._backend.inference_fn()
        source = batches.as_tensor(images)
        result = torch.empty(len(images), self.num_classes)
        starts = range(0, len(images), batch_size)
        readers = min(self._inference_threads, len(starts))
        if readers < 2 or self._device.type != "cpu":
            self._read(make, source, result, starts, batch_size)
            return result.numpy()
        # PyTorch keeps the number of threads for each thread that calls it.
        with ThreadPoolExecutor(readers, "inference", torch.set_num_threads, (1,)) as pool:
            shares = [starts[first::readers] for first in range(readers)]
            list(pool.map(lambda own: self._read(make, source, result, own, batch_size), shares))
        return result.numpy()

    def evaluate(self, images: batches.Images, labels: NDArray[np.int64]) -> Evaluation:
        """Accuracy and mean cross-entropy over all ``images``."""
        return evaluate_logits(self.logits(images), labels)

    def _read(
        self, make: backends.InferenceFn, source: Tensor, result: Tensor, starts: range, size: int
    ) -> None:
        """Fill the rows of ``result`` that begin at ``starts``, ``size`` images at a time."""
        count, channels, height, width = source.shape
        # A copy, channels-last and aligned: results must not depend on the caller's memory.
        buffer = torch.empty((min(size, count), height, width, channels), device=self._device)
        with torch.inference_mode():
            reader = lru_cache(make)
            for start in starts:
                part = source[start : start + size]
                batch = buffer[: len(part)].permute(0, 3, 1, 2).copy_(part)
                result[start : start + size] = reader(len(part))(batch)

    def _arranged(self, name: str, values: NDArray[np.float32] | None) -> Tensor | None:
        """A vector of the model's order (d,) in that of the backend's steps."""
        if values is None:
            return None
        if values.shape != (self.num_parameters,):
            raise ValueError(f"{name}={values.shape}: must have shape ({self.num_parameters},)")
        return self._backend.to_layout(batches.as_tensor(values).to(self._device))


def _input_shape(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    if len(shape) != 3 or any(size < 1 for size in shape):
        raise ValueError(f"input_shape={tuple(shape)}: must be (channels, height, width), above 0")
    channels, height, width = (int(size) for size in shape)
    return channels, height, width
