"""A later convolution with its pooling, bias and ReLU, whose gradient is where its maxima are.

Of the four places of a 2×2 window one has a gradient, and none where ReLU or dropout has cut it
off. PyTorch's kernels multiply the zeros of the others; here they are left out, so that the way
back takes a quarter of the products, or fewer. The convolution itself is PyTorch's.

For each image and output channel the gradients that are not zero are listed with their places.
Then each moves the input's gradient under the weights, and the weights' under the input, the lanes
of a vector being input channels. Sums are fused ones in a fixed order, as in ``fused``.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import torch
from torch import Tensor

from murmur_kernels import machine
from murmur_kernels.fused import CORNERS, DEAD, LANES, BlockSource, FusedBlock
from murmur_kernels.stages import Affine, Stage, move

_SUMS = 13  # of taps, which fit the registers


class PooledStage(Stage):
    """``block`` for ``batch`` images; see ``stages`` for the protocol.

    Args:
        block: the layers; not a network's first ones.
        parameters: weight (out, in, height, width) and bias (out,) or None.
        target: likewise, of the vector that ``backward`` moves.
        batch: B.
    """

    def __init__(self, block: FusedBlock, parameters: Affine, target: Affine, batch: int) -> None:
        self._kernels = compiled(block)
        self._batch = batch
        self._weight, bias = parameters
        self._bias = self._weight.new_zeros(block.channels)
        if bias is not None:
            self._bias = bias
        self._target, self._bias_target = target
        self._geometry = ((1, 1), block.padding, (1, 1), False, (0, 0), 1)
        height, width = block.image
        down, right = block.padding
        shape = (batch, height, width, block.channels_in)
        inner = (slice(None), slice(down, height - down), slice(right, width - right))
        self._x: Tensor | None = None
        self._padded: Tensor | None = None
        if block.padding != (0, 0):
            self._padded = self._weight.new_zeros(shape)
            self.input = self._padded[inner]
        self._padded_dx = self._weight.new_empty(shape)
        self._dx = self._padded_dx[inner]
        self._places = torch.empty(
            batch, *block.pooled, block.channels, dtype=torch.uint8, device=self._weight.device
        )
        self._y = torch.empty_like(self._places, dtype=self._weight.dtype)
        self._gradient = self._weight.new_empty(block.channels, *block.kernel, block.channels_in)
        self._bias_gradient = torch.empty_like(self._bias)
        windows = math.prod(block.pooled)
        self._values = self._weight.new_empty(windows)
        self._numbers = torch.empty(windows, dtype=torch.int64)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, in) to (B, H', W', out)."""
        if self._padded is None:
            self._x = x = x.contiguous()
        else:
            if x is not self.input:
                self.input.copy_(x)  # type: ignore[union-attr]
            self._x = self._padded
        z = torch.ops.aten.convolution(x.permute(0, 3, 1, 2), self._weight, None, *self._geometry)
        z = z.permute(0, 2, 3, 1).contiguous()
        tensors = (z, self._bias, self._y, self._places)
        self._kernels.pool(self._batch, *_addresses(*tensors))
        return self._y

    def infer(self, images: Tensor) -> Tensor:
        """``forward`` of images (B, in, H, W), channels-last, as PyTorch's layers have them."""
        return self.forward(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def backward(self, dy: Tensor, scale: float, weight_factor: float) -> Tensor:
        """(B, H', W', out) to (B, H, W, in)."""
        assert self._x is not None
        for total in (self._padded_dx, self._gradient, self._bias_gradient):
            total.zero_()
        dy = dy.contiguous()
        given = (self._x, self._weight, dy, self._places)
        found = (self._padded_dx, self._gradient, self._bias_gradient)
        tensors = (*given, *found, self._values, self._numbers)
        self._kernels.gradients(self._batch, *_addresses(*tensors))
        self._x = None
        move(self._target, self._gradient.permute(0, 3, 1, 2), scale, weight_factor)
        if self._bias_target is not None:
            move(self._bias_target, self._bias_gradient, scale, weight_factor)
        return self._dx


def _addresses(*tensors: Tensor) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


@dataclass(frozen=True)
class Kernels:
    """Machine code; addresses are of float32, but for ``places`` (bytes) and ``numbers`` (int64).

    Attributes:
        pool: ``(batch, outputs, bias, y, places)``. The convolution's outputs are channels last,
            and so is ``y``; ``places`` as in ``fused``.
        gradients: ``(batch, images, weights, dy, places, dimages, dweights, dbias, values,
            numbers)``, which adds to the three ``d`` in the middle. Weights are (out, taps, in);
            images are padded. The last two are memory for as many as an image has windows.
    """

    pool: Callable[..., None]
    gradients: Callable[..., None]


@lru_cache(maxsize=16)
def compiled(block: FusedBlock) -> Kernels:
    """The kernels for ``block``, compiled once for each process in a tenth of a second."""
    engine = machine.engine_of(_Source(block).text)
    return Kernels(machine.kernel(engine, "pool", 1, 4), machine.kernel(engine, "gradients", 1, 9))


class _Source(BlockSource):
    """LLVM's representation of both kernels."""

    def __init__(self, block: FusedBlock) -> None:
        wide = machine.has_avx512() and not (block.channels | block.channels_in) % (2 * LANES)
        super().__init__(block, 2 * LANES if wide else LANES)

    @property
    def text(self) -> str:
        """LLVM assembly of the module."""
        self._pool()
        self._gradients()
        return str(self.module)

    def _pool(self) -> None:
        """The kernel ``pool`` (see ``Kernels``)."""
        block = self.block
        rows, columns = block.pooled
        # Of the convolution's outputs.
        height, width = (
            size - kernel + 1 for size, kernel in zip(block.image, block.kernel, strict=True)
        )
        b, (batch, outputs, bias, y, places) = self.function("pool", 1, 4)
        with (
            self.loop(b, batch) as image,
            self.loop(b, rows) as row,
            self.loop(b, columns) as column,
            self.loop(b, block.channels // self.lanes) as chunk,
        ):
            channel = b.mul(chunk, self.constant(self.lanes))
            corner = self.corner(b, image, row, column, (height, width))
            first = b.add(b.mul(corner, self.constant(block.channels)), channel)
            values = []
            for down, right in CORNERS:
                further = self.constant((down * width + right) * block.channels)
                values.append(self.load(b, outputs, b.add(first, further)))
            best, place = self.winner(b, values, self.load(b, bias, channel))
            there = self.output(b, image, row, column, channel)
            self.store(b, best, y, there)
            self.store(b, place, places, there, self.codes)
        b.ret_void()

    def _gradients(self) -> None:
        """The kernel ``gradients`` (see ``Kernels``), by lists of what is not 0."""
        block = self.block
        b, (batch, *addresses) = self.function("gradients", 1, 9)
        images, weights, dy, places, dimages, dweights, dbias, *lists = addresses
        width, depth = block.image[1], block.channels_in
        taps = [(y * width + x) * depth for y, x in product(*map(range, block.kernel))]
        count = b.alloca(self.integer)
        total = b.alloca(self.real)
        sums = [b.alloca(self.vector) for _ in range(min(_SUMS, len(taps)))]
        with self.loop(b, batch) as image, self.loop(b, block.channels) as channel:
            self._list(b, image, channel, (dy, places), lists, (count, total))
            before = self.load(b, dbias, channel, self.real)
            self.store(b, b.fadd(before, b.load(total)), dbias, channel, self.real)
            listed = b.load(count)
            with (
                b.if_then(b.icmp_unsigned(">", listed, self.constant(0))),
                self.loop(b, depth // self.lanes) as chunk,
            ):
                lane = b.mul(chunk, self.constant(self.lanes))
                corner = b.add(b.mul(image, self.constant(math.prod(block.image) * depth)), lane)
                filters = b.add(b.mul(channel, self.constant(len(taps) * depth)), lane)
                rows = [self.plus(b, filters, number * depth) for number in range(len(taps))]
                with self._listed(b, listed, corner, lists) as (value, place):
                    for row, tap in zip(rows, taps, strict=True):
                        there = self.plus(b, place, tap)
                        moved = self.load(b, dimages, there)
                        moved = b.call(self.fma, [value, self.load(b, weights, row), moved])
                        self.store(b, moved, dimages, there)
                for first in range(0, len(taps), _SUMS):
                    group = slice(first, first + _SUMS)
                    own = list(zip(rows[group], taps[group], sums, strict=False))
                    for row, _, cell in own:
                        b.store(self.load(b, dweights, row), cell)
                    with self._listed(b, listed, corner, lists) as (value, place):
                        for _, tap, cell in own:
                            pixel = self.load(b, images, self.plus(b, place, tap))
                            b.store(b.call(self.fma, [value, pixel, b.load(cell)]), cell)
                    for row, _, cell in own:
                        self.store(b, b.load(cell), dweights, row)
        b.ret_void()

    def _list(
        self,
        b: Any,
        image: Any,
        channel: Any,
        given: tuple[Any, Any],
        lists: Sequence[Any],
        cells: tuple[Any, Any],
    ) -> None:
        """List those of an image's gradients of one channel that are not 0.

        Args:
            b: the builder.
            image: its number.
            channel: of the output.
            given: addresses of ``dy`` and ``places``.
            lists: addresses of ``values`` and ``numbers``. A number is where, within an image, the
                first tap reads.
            cells: get how many there are, and their sum.
        """
        dy, places = given
        values, numbers = lists
        count, total = cells
        width = self.constant(self.block.image[1])
        depth = self.constant(self.block.channels_in)
        zero = self.ir.Constant(self.real, 0.0)
        b.store(self.constant(0), count)
        b.store(zero, total)
        with (
            self.loop(b, self.block.pooled[0]) as row,
            self.loop(b, self.block.pooled[1]) as column,
        ):
            there = self.output(b, image, row, column, channel)
            code = b.zext(self.load(b, places, there, self.byte), self.integer)
            dead = b.icmp_unsigned("==", code, self.constant(DEAD))
            value = b.select(dead, zero, self.load(b, dy, there, self.real))
            b.store(b.fadd(b.load(total), value), total)
            line = b.add(b.mul(row, self.constant(2)), b.lshr(code, self.constant(1)))
            beside = b.add(b.mul(column, self.constant(2)), b.and_(code, self.constant(1)))
            place = b.add(b.mul(line, width), beside)
            # What is 0 is written too, and then written over.
            number = b.load(count)
            self.store(b, value, values, number, self.real)
            self.store(b, b.mul(place, depth), numbers, number, self.integer)
            counts = b.fcmp_unordered("!=", value, zero)
            b.store(b.add(number, b.zext(counts, self.integer)), count)

    @contextmanager
    def _listed(
        self, b: Any, count: Any, corner: Any, lists: Sequence[Any]
    ) -> Iterator[tuple[Any, Any]]:
        """Builds a loop over a list: a value in every lane, and where its first tap reads."""
        values, numbers = lists
        with self.loop(b, count) as item:
            value = self.in_every_lane(b, self.load(b, values, item, self.real))
            yield value, b.add(corner, self.load(b, numbers, item, self.integer))
