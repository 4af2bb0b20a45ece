"""Many clients' small models in lockstep: every step one product for all, to the very same bits.

A tiny client's step takes as long as calling PyTorch does. Here 32 clients make one call: their
parameters are rows of one matrix, and each product of ``sequences`` is a batched one. Whether a
batched product has the bits of single ones is up to library, processor and sizes. So everything
lies where it lies for one client, up to whole cache lines, which is what a library looks at; and it
is tried: before clients of one kind first train in lockstep, made-up ones do it both ways, and a
kind whose bits differ trains one by one. No result depends on who trains beside whom.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from murmur.learning.models import Flatten
from murmur.learning.training.batches import MAX_GATHERED_EXAMPLES, Images, as_tensor, count_steps
from murmur.learning.training.optimiser import Optimisation
from murmur.learning.training.parameters import FlatModel
from murmur.learning.training.stack import ClientBatch, TrainSingle
from murmur_kernels.stages import NARROW, move, relu_backward, tanh_backward

WIDTH = 32  # clients that train together
MIN_CLIENTS = 8  # fewer of a kind train one by one
LINE = 16  # numbers in a cache line
TRIED_AFTER = 64  # clients of a kind: trying takes as long as training 32 one by one
_TRIED_STEPS = 64

# Above these, arithmetic is what takes a step's time.
_MAX_PARAMETERS = 16_384
_MAX_INPUTS = 65_536  # numbers in a client's images


class Kind(NamedTuple):
    """Training settings that clients in one lockstep group share.

    Attributes:
        examples: of each.
        batch_size: the last batch of a pass may be smaller.
        steps: how many.
        how: the step, of plain SGD.
        corrected: whether their shares have a correction.
    """

    examples: int
    batch_size: int
    steps: int
    how: Optimisation
    corrected: bool


BatchBuffer = Callable[[int], tuple[Tensor, Tensor]]
"""``Backend.batch_buffer``: memory for images, as rows that end in a 1 and as images."""


def can_lock(module: nn.Module, size: int) -> bool:
    """Returns whether a supported sequence of ``size`` parameters can train in lockstep."""
    first, *layers = module.children()
    affine = [layer for layer in layers if type(layer) is nn.Linear]
    return (
        size <= _MAX_PARAMETERS
        and type(first) is Flatten
        and all(type(layer) in (nn.Linear, nn.ReLU, nn.Tanh) for layer in layers)
        and all(layer.bias is not None for layer in affine)
    )


class Lockstep:
    """Trains copies of a sequence that ``can_lock``, whose own parameters stay as they are.

    Args:
        flat: the model.
        num_classes: number of logits.
        batch_buffer: makes memory for batches.
        train_single: trains one client; the results must equal its.
    """

    def __init__(
        self,
        flat: FlatModel,
        num_classes: int,
        batch_buffer: BatchBuffer,
        train_single: TrainSingle,
    ) -> None:
        self._flat = flat
        self._num_classes = num_classes
        self._train_single = train_single
        self._met: Counter[Kind] = Counter()
        self._is_exact: dict[Kind, bool] = {}
        self._batch_buffer = lru_cache(4)(batch_buffer)
        self._inputs = lru_cache(4)(_lines)
        self._parameters = _lines(1, flat.num_parameters)[:, 0]
        self._plan = lru_cache(16)(partial(_Plan, flat.module, self._parameters))

    def train(
        self,
        images: Images,
        labels: NDArray[np.int64],
        shares: Sequence[ClientBatch],
        *,
        batch_size: int,
        lr: float,
        epochs: int | None = None,
        steps: int | None = None,
        proximal_mu: float = 0.0,
    ) -> list[Any]:
        """Trains clients in lockstep, with the results of ``Trainer.train`` bit for bit.

        Args:
            images: float32 (N, C, H, W).
            labels: classes (N,).
            shares: the clients' starts, examples and streams; each is its own anchor. The stream
                of a client that is to be trained alone is as it was.
            batch_size: examples per step of a client; the last batch of a pass may be smaller.
            lr: learning rate of plain SGD.
            epochs: passes over a client's examples; either this or ``steps``.
            steps: number of steps of each client.
            proximal_mu: pull towards a client's start.

        Returns:
            For each client its parameters (d,), or None: it is to be trained alone.
        """
        how = Optimisation(lr, proximal_mu=proximal_mu)
        alike: dict[Kind, list[int]] = defaultdict(list)
        for place, share in enumerate(shares):
            count = len(share.indices)
            number = count_steps(epochs, steps, count, batch_size)
            kind = Kind(count, batch_size, number, how, share.correction is not None)
            alike[kind].append(place)
        trained: list[NDArray[np.float32] | None] = [None] * len(shares)
        for kind, places in alike.items():
            self._met[kind] += len(places)
            for start in range(0, len(places), WIDTH):
                group = places[start : start + WIDTH]
                parts = [shares[place] for place in group]
                if len(group) < MIN_CLIENTS or not self._suits(images, labels, parts, kind):
                    continue
                models = self._train(images, labels, parts, kind)
                for place, model in zip(group, models, strict=True):
                    trained[place] = model
        return trained

    def _suits(
        self, images: Images, labels: NDArray[np.int64], shares: Sequence[ClientBatch], kind: Kind
    ) -> bool:
        """Returns whether these clients may train in lockstep.

        Clients with invalid data may not: training alone raises the error.
        """
        features = images[0].size
        if not 1 <= kind.examples <= min(MAX_GATHERED_EXAMPLES, _MAX_INPUTS // features):
            return False
        rows = np.stack([share.indices for share in shares])
        if rows.min() < 0 or rows.max() >= len(images):
            return False
        classes = labels[rows]
        if classes.min() < 0 or classes.max() >= self._num_classes:
            return False
        if kind not in self._is_exact:
            if self._met[kind] < TRIED_AFTER:
                return False
            self._is_exact[kind] = self._try(images.shape[1:], kind)
        return self._is_exact[kind]

    def _try(self, shape: tuple[int, ...], kind: Kind) -> bool:
        """Returns whether synthetic clients get the same bits in lockstep as alone."""
        kind = kind._replace(steps=min(kind.steps, _TRIED_STEPS))
        rng = np.random.default_rng(0)
        count = WIDTH * kind.examples
        images = rng.standard_normal((count, *shape), dtype=np.float32)
        labels = rng.integers(0, self._num_classes, count)
        size = self._flat.num_parameters
        starts = rng.standard_normal((2, WIDTH, size), dtype=np.float32) / 8
        rows = rng.permutation(count).reshape(WIDTH, -1)

        def share(client: int) -> ClientBatch:
            correction = starts[1, client] if kind.corrected else None
            return ClientBatch(
                starts[0, client], rows[client], np.random.default_rng(client), correction
            )

        shares = [share(client) for client in range(WIDTH)]
        together = self._train(images, labels, shares, kind)
        present = self._flat.vector.clone()
        how = {
            "batch_size": kind.batch_size,
            "steps": kind.steps,
            "lr": kind.how.lr,
            "proximal_mu": kind.how.proximal_mu,
        }
        alone = [self._train_single(images, labels, share(k), **how) for k in range(WIDTH)]
        self._flat.vector.copy_(present)
        return np.array_equal(together, np.stack(alone))

    def _train(
        self,
        images: Images,
        labels: NDArray[np.int64],
        shares: Sequence[ClientBatch],
        kind: Kind,
    ) -> NDArray[np.float32]:
        """The parameters (clients, d) of at most ``WIDTH`` clients of one kind."""
        how = kind.how
        with torch.inference_mode():
            self._arrange(self._parameters, [share.start for share in shares])
            anchor = self._parameters.clone() if how.pull else None
            added = None
            if kind.corrected:
                added = _lines(1, self._flat.num_parameters)[:, 0]
                self._arrange(added, [share.correction for share in shares])
            for x, y in self._batches(images, labels, shares, kind):
                batch = x.shape[1]
                self._plan(batch).run(x, y, -how.lr / batch, how.weight_factor)
                if anchor is not None:
                    self._parameters.add_(anchor, alpha=how.pull)
                if added is not None:
                    self._parameters.sub_(added, alpha=how.lr)
            # In the model's own order.
            public = torch.empty(self._parameters.shape)
            own = self._split(self._parameters, stored=True)
            for to, part in zip(self._split(public), own, strict=True):
                to.copy_(part)
            return public[: len(shares)].numpy()

    def _batches(
        self, images: Images, labels: NDArray[np.int64], shares: Sequence[ClientBatch], kind: Kind
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows (WIDTH, B, inputs + 1) and classes (WIDTH, 1, B) of every step.

        Each client's batches are those of ``BatchLoader``; places without a client have zeros.
        """
        count = kind.examples
        rows, memory = self._batch_buffer(WIDTH * count)
        gathered = rows.view(WIDTH, count, -1)
        width = gathered.shape[2]
        source = as_tensor(images)
        per_pass = -(-count // kind.batch_size)
        own = np.stack([share.indices for share in shares])
        chosen = np.zeros((WIDTH, count), np.int64)
        for first in range(0, kind.steps, per_pass):
            # A loader has several passes side by side, so a later one begins within a line.
            before = first // per_pass % (MAX_GATHERED_EXAMPLES // count) * count * width
            inputs = self._inputs(count, width, before % LINE)
            number = min(per_pass, kind.steps - first)
            orders = np.stack([share.rng.permutation(count) for share in shares])
            chosen[: len(shares)] = np.take_along_axis(own, orders, axis=1)
            torch.index_select(source, 0, torch.from_numpy(chosen).view(-1), out=memory)
            inputs.copy_(gathered)
            classes = torch.from_numpy(labels[chosen]).unsqueeze(1)
            for start in range(0, number * kind.batch_size, kind.batch_size):
                part = slice(start, start + kind.batch_size)
                yield inputs[:, part], classes[:, :, part]

    def _arrange(self, matrix: Tensor, vectors: Sequence[NDArray[np.float32] | None]) -> None:
        """Fill ``matrix`` with ``vectors``, stored as stages like them (``stored_views``)."""
        given = torch.from_numpy(np.stack(vectors))  # type: ignore[arg-type]
        matrix.zero_()
        for to, part in zip(self._split(matrix, stored=True), self._split(given), strict=True):
            to[: len(vectors)] = part

    def _split(self, matrix: Tensor, stored: bool = False) -> list[Tensor]:
        """Views (clients, *shape) of each parameter."""
        shapes = [tuple(p.shape) for p in self._flat.module.parameters()]
        parts = matrix.split([int(np.prod(shape)) for shape in shapes], dim=1)
        return [
            part.view(-1, *shape[::-1]).transpose(1, 2)
            if stored and len(shape) == 2
            else part.view(-1, *shape)
            for part, shape in zip(parts, shapes, strict=True)
        ]


class _Plan:
    """The steps of ``sequences.Plan`` for ``WIDTH`` clients and one batch size.

    Args:
        module: the sequence.
        parameters: (WIDTH, d), which it moves.
        batch: B.
    """

    def __init__(self, module: nn.Module, parameters: Tensor, batch: int) -> None:
        self._layers: list[_Affine] = []
        activation: nn.Module | None = None
        offset = 0
        for layer in module.children():
            if type(layer) is nn.Linear:
                self._layers.append(_Affine(layer, parameters, offset, batch, activation))
                offset += layer.weight.numel() + layer.out_features
                activation = None
            else:
                activation = layer
        classes = self._layers[-1].matrix.shape[2]
        self._logits = _lines(classes, batch)
        self._residual = _lines(classes, batch)
        self._minus = parameters.new_full((WIDTH, 1, batch), -1.0)

    def run(self, x: Tensor, y: Tensor, scale: float, weight_factor: float) -> None:
        """One step of every client: see ``sequences.Plan.run``; ``y``: classes (WIDTH, 1, B)."""
        first, *later = self._layers
        first.x = x
        for before, layer in pairwise(self._layers):
            torch.bmm(before.x, before.matrix, out=layer.features)
            layer.activate()
        last = self._layers[-1]
        torch.bmm(last.matrix.transpose(1, 2), last.x.transpose(1, 2), out=self._logits)
        torch.softmax(self._logits, 1, out=self._residual)
        dy = self._residual.scatter_add_(1, y, self._minus).transpose(1, 2)
        for layer in reversed(later):
            dx = layer.input_gradient(dy)  # before the update
            layer.move(dy, scale, weight_factor)
            dy = dx
        first.move(dy, scale, weight_factor)


class _Affine:
    """A linear layer of ``WIDTH`` clients, and the activation before it.

    Args:
        layer: gives the sizes.
        parameters: (WIDTH, d).
        offset: where its weight begins among them.
        batch: B.
        activation: what comes before it, if anything.

    Attributes:
        matrix: (WIDTH, in + 1, out), a view of the parameters.
        x: (WIDTH, B, in + 1), the last input, ending in a column of ones.
        features: (WIDTH, B, in), a view of ``x``.
    """

    x: Tensor
    features: Tensor

    def __init__(
        self,
        layer: nn.Linear,
        parameters: Tensor,
        offset: int,
        batch: int,
        activation: nn.Module | None,
    ) -> None:
        rows = layer.in_features + 1
        columns = layer.out_features
        self._features = layer.in_features
        self._activation = activation
        self._gradient = _lines(columns, rows)
        self.matrix = parameters.as_strided(
            (WIDTH, rows, columns), (parameters.stride(0), columns, 1), offset
        )
        if offset:
            self.x = _lines(batch, rows).fill_(1)
            self.features = self.x[:, :, : layer.in_features]
            self._dx = _lines(batch, layer.in_features)

    def activate(self) -> None:
        """Its input, in place."""
        if type(self._activation) is nn.ReLU:
            self.features.relu_()
        elif self._activation is not None:
            self.features.tanh_()

    def input_gradient(self, dy: Tensor) -> Tensor:
        """With respect to what the layer before gives, from that of the output (WIDTH, B, out)."""
        weight = self.matrix[:, : self._features].transpose(1, 2)
        dx = torch.bmm(dy, weight, out=self._dx)
        if type(self._activation) is nn.ReLU:
            relu_backward(dx, self.features, 0, grad_input=dx)
        elif self._activation is not None:
            tanh_backward(dx, self.features, grad_input=dx)
        return dx

    def move(self, dy: Tensor, scale: float, weight_factor: float) -> None:
        """Move the parameters by their gradient, as ``LinearStage`` does."""
        if self.matrix.shape[2] < NARROW:
            torch.bmm(dy.transpose(1, 2), self.x, out=self._gradient)
            move(self.matrix, self._gradient.transpose(1, 2), scale, weight_factor)
        else:
            self.matrix.baddbmm_(self.x.transpose(1, 2), dy, beta=weight_factor, alpha=scale)


def _lines(rows: int, columns: int, offset: int = 0) -> Tensor:
    """Zeros (WIDTH, rows, columns): each client's begin so many numbers after a cache line does."""
    stride = -(-(rows * columns + offset) // LINE) * LINE
    memory = torch.zeros(WIDTH * stride)
    return memory.as_strided((WIDTH, rows, columns), (stride, columns, 1), offset)
