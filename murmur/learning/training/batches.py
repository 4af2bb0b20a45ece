"""Examples on their way to a step: arrays as tensors, checked targets, shuffled mini-batches.

A process holds its images once, on its device; clients are indices into them. Batches are gathered
into memory that is made once.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from murmur.learning.objective import CLASSIFICATION, Objective

Images = NDArray[np.float32]
"""(N, C, H, W)."""
Labels = NDArray[np.int64] | NDArray[np.float32]
"""Classes (N,), distributions (N, classes), or what another task has (``Objective``)."""
Indices = NDArray[np.integer[Any]]
"""(n,), which of the N examples."""

# Examples gathered at a time: enough to spread the cost of a gather over many small steps, few
# enough to stay in cache and to bound memory whatever the size of a data set.
MAX_GATHERED_EXAMPLES = 2048


class _Readable:
    """Presents an array to NumPy as writable, keeping it alive."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def as_tensor(array: NDArray[Any]) -> Tensor:
    """A tensor over the memory of ``array``, without a copy. Only ever read it.

    ``torch.from_numpy`` warns of every read-only array, such as a data set mapped into memory,
    since PyTorch has no read-only tensors; here that is what we want.
    """
    if array.flags.writeable:
        return torch.from_numpy(array)
    return torch.from_numpy(np.asarray(_Readable(array)))


class ResidentImages:
    """The images that a process trains on, as a tensor that stays from one client to the next.

    Args:
        input_shape: (channels, height, width).
        device: where the tensor lives; on a CPU it is the array's own memory.
    """

    def __init__(self, input_shape: tuple[int, int, int], device: torch.device) -> None:
        self._input_shape = input_shape
        self._device = device
        self._held: tuple[Images, Tensor] | None = None

    def check(self, images: Images) -> None:
        """ValueError unless ``images`` are float32 (N, C, H, W)."""
        if images.shape[1:] != self._input_shape or images.dtype != np.float32:
            raise ValueError(
                f"images={images.shape} {images.dtype}: must be float32 (N, *{self._input_shape})"
            )

    def tensor(self, images: Images) -> Tensor:
        """``images`` on the device: clients share a process's data, so it is moved once.

        Raises:
            ValueError: they are not float32 (N, C, H, W).
        """
        self.check(images)
        if self._device.type == "cpu":
            return as_tensor(images)
        if self._held is None or self._held[0] is not images:
            self._held = images, as_tensor(images).to(self._device)
        return self._held[1]


class BatchLoader:
    """Serves batches of images and targets.

    Args:
        batch_buffer: makes memory for a number of images; see ``Backend.batch_buffer``.
        device: where the batches go.
    """

    def __init__(
        self, batch_buffer: Callable[[int], tuple[Tensor, Tensor]], device: torch.device
    ) -> None:
        self._batch_buffer = batch_buffer
        self._device = device
        self._memory, self._images = batch_buffer(0)

    def batches(
        self,
        images: Tensor,
        targets: Tensor,
        indices: Tensor | None,
        *,
        size: int,
        steps: int,
        rng: np.random.Generator,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ``steps`` batches, in a fresh order for every pass over the examples.

        Args:
            images: (N, C, H, W), on the device.
            targets: (n, num_classes), on the device.
            indices: (n,), which of the images the targets belong to; all of them if None.
            size: examples per batch; the last batch of a pass may be smaller.
            steps: how many batches, over as many passes as that takes.
            rng: draws the orders.

        Yields:
            Images, a slice of the buffer that is overwritten later, and targets (B, num_classes).
        """
        count = len(targets)
        one_pass = [size] * (count // size)
        if count % size:
            one_pass.append(count % size)
        # A gather holds whole passes, or a part of one where the examples are many.
        passes = max(1, MAX_GATHERED_EXAMPLES // count)
        at_once = max(1, MAX_GATHERED_EXAMPLES // size)
        if count <= MAX_GATHERED_EXAMPLES:
            at_once = len(one_pass) * passes
        while steps > 0:
            sizes = (one_pass * passes)[:steps]
            steps -= len(sizes)
            drawn = -(-len(sizes) // len(one_pass))
            orders = [torch.from_numpy(rng.permutation(count)) for _ in range(drawn)]
            order = torch.cat(orders).to(self._device)
            start = 0
            for first in range(0, len(sizes), at_once):
                group = sizes[first : first + at_once]
                part = order[start : start + sum(group)]
                start += len(part)
                gathered = self._gather(images, part if indices is None else indices[part])
                yield from zip(gathered.split(group), targets[part].split(group), strict=True)

    def _gather(self, images: Tensor, chosen: Tensor) -> Tensor:
        if len(chosen) > len(self._images):
            self._memory, self._images = self._batch_buffer(len(chosen))
        torch.index_select(images, 0, chosen, out=self._images[: len(chosen)])
        return self._memory[: len(chosen)]


def index_tensor(indices: Indices | None, count: int) -> Tensor | None:
    """``indices`` (n,) as int64, checked to lie in [0, ``count``); None stands for all.

    Raises:
        ValueError: an index is out of range, or there is no example at all.
    """
    if (count if indices is None else len(indices)) == 0:
        raise ValueError("images=(): must hold at least one example to train on")
    if indices is None:
        return None
    if indices.min() < 0 or indices.max() >= count:
        raise ValueError(f"indices={indices.min()}..{indices.max()}: must be from 0 to {count - 1}")
    return torch.from_numpy(indices.astype(np.int64))


def target_rows(
    labels: Labels,
    indices: Tensor | None,
    shape: tuple[int, int],
    soft: bool,
    objective: Objective = CLASSIFICATION,
) -> Tensor:
    """Targets, float32 (n, outputs): distributions, one-hot where labels are classes.

    Args:
        labels: integers (N,), or distributions (N, classes) if ``soft``; of another task as it
            has them.
        indices: (n,), which of them; all if None.
        shape: (N, outputs).
        soft: whether labels are distributions, or in another task targets.
        objective: the task.

    Raises:
        ValueError: labels have another shape or type, name no class or are no distributions.
    """
    if not objective.has_classes and not soft:
        if len(labels) != shape[0]:
            raise ValueError(f"labels={labels.shape}: must be one for each of {shape[0]} images")
        chosen = labels if indices is None else labels[indices.numpy()]
        return torch.from_numpy(objective.targets(chosen, shape[1]))
    expected: tuple[int, ...] = shape[:1]
    kind: type = np.integer
    if soft:
        expected = shape
        kind = np.floating
    if labels.shape != expected or not np.issubdtype(labels.dtype, kind):
        raise ValueError(
            f"labels={labels.dtype}{labels.shape}: must be {kind.__name__} {expected} "
            f"for soft_targets={soft}"
        )
    chosen = labels if indices is None else labels[indices.numpy()]
    if soft:
        if not ((chosen >= 0).all() and np.allclose(chosen.sum(axis=1), 1, atol=1e-3)):
            raise ValueError("labels=soft: every row must be a distribution over the classes")
        return torch.tensor(chosen, dtype=torch.float32)
    require_classes(chosen, shape[1])
    one_hot = np.zeros((len(chosen), shape[1]), np.float32)
    one_hot[np.arange(len(chosen)), chosen] = 1
    return torch.from_numpy(one_hot)


def require_classes(labels: NDArray[Any], classes: int) -> None:
    """ValueError unless every one of ``labels`` names one of ``classes``."""
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels={labels.min()}..{labels.max()}: must be from 0 to {classes - 1}")


def count_steps(epochs: int | None, steps: int | None, count: int, batch_size: int) -> int:
    """How many batches of ``batch_size`` to train on, for ``epochs`` over ``count`` examples.

    Raises:
        ValueError: not exactly one of ``epochs`` and ``steps`` is set, or a value is too small.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: must be at least 1")
    for name, value in (("steps", steps), ("epochs", epochs)):
        if value is not None and value < 0:
            raise ValueError(f"{name}={value}: must be at least 0")
    if epochs is not None and steps is None:
        return epochs * -(-count // batch_size)
    if steps is not None and epochs is None:
        return steps
    raise ValueError(f"epochs={epochs}: set either epochs or steps (steps={steps})")
