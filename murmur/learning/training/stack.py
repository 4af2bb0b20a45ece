"""Local training of many clients' small models at once, as one stack: what a GPU needs.

A small model's step on a GPU takes as long as launching its kernels does, whatever they compute. A
stack makes the same launches for all of its clients: their parameters are the rows of one matrix
(K, d), and ``torch.func`` turns the gradient of one model into the gradients of all. On a CPU,
where arithmetic is what takes the time, nothing is gained.

A client's batches are those that ``Trainer.train`` draws, so that its result is
the same but for the rounding of sums.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from murmur.learning.models import Dropout
from murmur.learning.training import batches
from murmur.learning.training.optimiser import Optimisation
from murmur.learning.training.parameters import FlatModel

TrainSingle = Callable[..., NDArray[np.float32]]
"""Trains one client by itself (``Trainer.train_single``): its parameters (d,)."""
_DRAWING = (Dropout, nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention)


@dataclass(frozen=True)
class ClientBatch:
    """One client's part of a stack.

    Attributes:
        start: parameters (d,) at the start, and the anchor of a proximal term.
        indices: (n,), its rows of the resident examples.
        rng: draws the orders.
        correction: (d,), added to the gradient in every step; nothing if None.
    """

    start: NDArray[np.float32]
    indices: NDArray[np.int64]
    rng: np.random.Generator
    correction: NDArray[np.float32] | None = None


def stackable(module: nn.Module) -> bool:
    """True if copies of ``module`` can train as a stack.

    Not where it draws (dropout), keeps statistics (batch normalisation) or brings its own way of
    training, nor where a layer is neither PyTorch's nor ours and could do any of these.
    """
    layers = list(module.modules())
    draws = any(isinstance(layer, _DRAWING) for layer in layers)
    known = all(
        type(layer).__module__.startswith(("torch.nn.", "murmur.learning.")) for layer in layers
    )
    buffers = any(True for _ in module.buffers())
    return known and not (draws or buffers or hasattr(module, "backend"))


class ManyClients(Protocol):
    """Trains many clients at once, as ``Stack`` does."""

    def train(
        self,
        images: batches.Images,
        labels: NDArray[np.int64],
        shares: Sequence[ClientBatch],
        *,
        batch_size: int,
        lr: float,
        epochs: int | None = None,
        steps: int | None = None,
        proximal_mu: float = 0.0,
    ) -> Sequence[Any] | NDArray[np.float32]:
        """Returns each client's parameters (d,), or None for one that is left out."""


@dataclass(frozen=True)
class Stack:
    """Trains copies of ``flat.module``, whose own parameters stay as they are.

    Attributes:
        flat: the model; ``stackable``.
        resident: the images that clients share.
        num_classes: number of logits.
        mixed_precision: whether products are computed in bfloat16.
    """

    flat: FlatModel
    resident: batches.ResidentImages
    num_classes: int
    mixed_precision: bool

    def train(
        self,
        images: batches.Images,
        labels: NDArray[np.int64],
        shares: Sequence[ClientBatch],
        *,
        batch_size: int,
        lr: float,
        epochs: int | None = None,
        steps: int | None = None,
        proximal_mu: float = 0.0,
    ) -> NDArray[np.float32]:
        """Train K clients at once, each as ``Trainer.train`` would.

        Args:
            images: float32 (N, C, H, W).
            labels: classes (N,).
            shares: the clients' starts, examples and streams; each is its own anchor. They may
                have different numbers of examples and of steps.
            batch_size: examples per step of a client; the last batch of a pass may be smaller.
            lr: learning rate of plain SGD.
            epochs: passes over a client's examples; either this or ``steps``.
            steps: number of steps of each client.
            proximal_mu: pull towards a client's start.

        Returns:
            Parameters (K, d): those of ``Trainer.train`` but for the rounding of sums.

        Raises:
            ValueError: an argument is outside its range or of the wrong shape.
        """
        how = Optimisation(lr, proximal_mu=proximal_mu)
        self.resident.check(images)
        if labels.shape != images.shape[:1]:
            raise ValueError(f"labels={labels.shape}: must be ({len(images)},), one for each image")
        for share in shares:
            batches.index_tensor(share.indices, len(images))
            batches.require_classes(labels[share.indices], self.num_classes)
        # The longest first, so that those who still train are always the first rows.
        steps_of = [
            batches.count_steps(epochs, steps, len(share.indices), batch_size) for share in shares
        ]
        order = np.argsort(-np.array(steps_of), kind="stable")
        ordered = [shares[which] for which in order]
        lengths = np.array(steps_of)[order]
        plans = [_plan(s, int(n), batch_size) for s, n in zip(ordered, lengths, strict=True)]
        device = self.flat.vector.device
        pixels = self.resident.tensor(images)
        classes = torch.from_numpy(labels).to(device)
        rows = torch.from_numpy(_pad([rows for rows, _ in plans])).to(device)
        weights = torch.from_numpy(_pad([weights for _, weights in plans])).to(device)
        matrix = torch.from_numpy(np.stack([share.start for share in ordered])).to(device)
        anchor = matrix.clone() if how.pull else matrix
        correction = _corrections(ordered, device)
        self.flat.train()
        for step in range(rows.shape[1]):
            active = int((lengths > step).sum())
            batch = rows[:active, step]
            moved = matrix[:active]
            self._step(
                moved, anchor[:active], pixels[batch], classes[batch], weights[:active, step], how
            )
            if correction is not None:
                moved.sub_(correction[:active], alpha=how.lr)
        result = torch.empty_like(matrix)
        result[torch.from_numpy(order).to(device)] = matrix
        return result.cpu().numpy()

    def _step(
        self,
        matrix: Tensor,
        anchor: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        how: Optimisation,
    ) -> None:
        views = vmap(self.flat.views)(matrix)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.mixed_precision):
            gradients = vmap(grad(self._loss))(views, x, y, weight)
        with torch.no_grad():
            matrix.mul_(how.weight_factor)
            if how.pull:
                matrix.add_(anchor, alpha=how.pull)
            for name, view in views.items():
                view.sub_(gradients[name], alpha=how.lr)

    def _loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Mean cross-entropy of a batch; padding weighs nothing."""
        logits = functional_call(self.flat.module, parameters, (x,))
        return functional.cross_entropy(logits, y, reduction="none").mul(weight).sum()


def _plan(
    share: ClientBatch, steps: int, size: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Examples (steps, width) and their weights in the mean, padded; each pass in a fresh order."""
    count = len(share.indices)
    width = min(size, count)
    per_pass = -(-count // size)
    rows = np.zeros((-(-steps // per_pass), per_pass * width), np.int64)
    weights = np.zeros(rows.shape, np.float32)
    sizes = np.full(per_pass, width)
    sizes[-1] = count - (per_pass - 1) * width
    for own in rows:
        own[:count] = share.indices[share.rng.permutation(count)]
    weights[:, :count] = np.repeat(1 / sizes, sizes)
    return rows.reshape(-1, width)[:steps], weights.reshape(-1, width)[:steps]


def _corrections(shares: Sequence[ClientBatch], device: torch.device) -> Tensor | None:
    """(K, d), zeros for those without; None where nobody has one."""
    if all(share.correction is None for share in shares):
        return None
    rows = np.zeros((len(shares), len(shares[0].start)), np.float32)
    for row, share in zip(rows, shares, strict=True):
        if share.correction is not None:
            row[:] = share.correction
    return torch.from_numpy(rows).to(device)


def _pad(parts: list[NDArray]) -> NDArray:
    """(K, steps, width), zeros where a part is shorter or narrower."""
    shape = [max(part.shape[axis] for part in parts) for axis in (0, 1)]
    whole = np.zeros((len(parts), *shape), parts[0].dtype)
    for place, part in zip(whole, parts, strict=True):
        place[: len(part), : part.shape[1]] = part
    return whole
