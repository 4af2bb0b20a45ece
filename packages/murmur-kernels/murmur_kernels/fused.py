"""The first convolution of a network with its pooling, bias and ReLU as one compiled stage.

Done one after the other, convolution, 2×2 maximum pooling, bias and ReLU are bounded by memory:
every pixel becomes a value for each channel, written and read again before three quarters are
thrown away. Here the four places of a window stay in registers, the lanes of a vector being
channels, and only the largest is written. The stages of one layer each (``stages``) are the general
way, and the reference that tests hold this one to.

The kernels are generated as LLVM's intermediate representation and compiled by llvmlite, whose
wheel holds the compiler (extra ``fast``). Every product and sum is an explicit fused one in a fixed
order, so that the bits depend neither on the batch nor on the width of the processor's vectors.

Read from ``FusedStage``, what a sequence sees, down to ``_Source``, which writes the code.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from murmur_kernels import machine
from murmur_kernels.stages import Affine, Stage, move, pair

LANES = 8  # of the narrowest vector
_MAX_WINDOW_TAPS = 25  # taps of a channel, which are to fit the registers
_MAX_FILTER_TAPS = 75  # taps of all channels
CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))
DEAD = len(CORNERS)  # the place written where ReLU lets no gradient through


@dataclass(frozen=True)
class FusedBlock:
    """The layers that one stage computes; its images are channels-last.

    Attributes:
        channels_in: of an image.
        channels: of the output, a multiple of 8.
        kernel: (height, width).
        image: (height, width), padding included.
        padding: (height, width).
        relu: whether ReLU follows.
    """

    channels_in: int
    channels: int
    kernel: tuple[int, int]
    image: tuple[int, int]
    padding: tuple[int, int]
    relu: bool

    @classmethod
    def beginning(
        cls, layers: Sequence[object], shape: Sequence[int], later: bool = False
    ) -> "FusedBlock | None":
        """The block at the beginning of a supported sequence, or of the rest of one.

        Args:
            layers: of the sequence.
            shape: (H, W, C) of the first one's input.
            later: whether other layers come before (``pooled``).

        Returns:
            None where it does not begin with a plain convolution and halving pooling, or where the
            sequence's first one is not small.
        """
        first = layers[0]
        if not isinstance(first, nn.Conv2d) or not isinstance(layers[1], nn.MaxPool2d):
            return None
        kernel = pair(first.kernel_size)
        area = math.prod(kernel)
        fits = area <= _MAX_WINDOW_TAPS and area * first.in_channels <= _MAX_FILTER_TAPS
        if later:
            fits = first.in_channels % LANES == 0
        plain = first.stride == first.dilation == (1, 1) and pair(layers[1].kernel_size) == (2, 2)
        if not plain or not fits or first.out_channels % LANES:
            return None
        height, width, channels = shape
        vertical, horizontal = pair(first.padding)  # type: ignore[arg-type]
        image = (height + 2 * vertical, width + 2 * horizontal)
        relu = isinstance(layers[2], nn.ReLU)
        return cls(channels, first.out_channels, kernel, image, (vertical, horizontal), relu)

    @property
    def size(self) -> int:
        """How many layers: convolution, pooling and perhaps ReLU."""
        return 2 + self.relu

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width of the output; a last odd row or column is left out."""
        height, width = self.image
        kernel_y, kernel_x = self.kernel
        return (height - kernel_y + 1) // 2, (width - kernel_x + 1) // 2

    @property
    def taps(self) -> list[tuple[int, int, int]]:
        """(channel, y, x) of the weights, in the order in which they are added up."""
        rows, columns = map(range, self.kernel)
        return [(c, y, x) for c in range(self.channels_in) for y in rows for x in columns]


class FusedStage(Stage):
    """``block`` for ``batch`` images; see ``stages`` for the protocol.

    Args:
        block: the layers.
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
        self._padded: Tensor | None = None
        if block.padding != (0, 0):
            height, width = block.image
            down, right = block.padding
            self._padded = self._weight.new_zeros(batch, height, width, block.channels_in)
            self._inner = self._padded[:, down : height - down, right : width - right]
        self._x: Tensor | None = None
        self._y = self._weight.new_empty(batch, *block.pooled, block.channels)
        self._places = torch.empty_like(self._y, dtype=torch.uint8)
        self._taps = self._weight.new_empty(block.channels_in, *block.kernel, block.channels)
        self._gradient = torch.empty_like(self._taps)
        self._bias_gradient = torch.empty_like(self._bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, in) to (B, H', W', out)."""
        if self._padded is None:
            self._x = x.contiguous()
        else:
            self._inner.copy_(x)
            self._x = self._padded
        self._taps.copy_(self._weight.permute(1, 2, 3, 0))
        tensors = (self._x, self._taps, self._bias, self._y, self._places)
        self._kernels.forward(self._batch, *(tensor.data_ptr() for tensor in tensors))
        return self._y

    def infer(self, images: Tensor) -> Tensor:
        """``forward`` of images (B, in, H, W), channels-last, as PyTorch's layers have them."""
        return self.forward(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def backward(self, dy: Tensor, scale: float, weight_factor: float) -> None:
        """(B, H', W', out); nobody needs the images' gradient."""
        assert self._x is not None
        self._gradient.zero_()
        self._bias_gradient.zero_()
        dy = dy.contiguous()
        tensors = (self._x, dy, self._places, self._gradient, self._bias_gradient)
        self._kernels.backward(self._batch, *(tensor.data_ptr() for tensor in tensors))
        self._x = None
        move(self._target, self._gradient.permute(3, 0, 1, 2), scale, weight_factor)
        if self._bias_target is not None:
            move(self._bias_target, self._bias_gradient, scale, weight_factor)


@dataclass(frozen=True)
class Kernels:
    """Machine code; addresses are of float32, but for ``places`` (bytes).

    Attributes:
        forward: ``(batch, images, weights, bias, y, places)``. Weights are (taps, channels),
            outputs (B, height, width, channels); ``places`` says which corner of its window an
            output is.
        backward: ``(batch, images, dy, places, dweights, dbias)``, which adds to the last two.
    """

    forward: Callable[..., None]
    backward: Callable[..., None]


@lru_cache(maxsize=16)
def compiled(block: FusedBlock) -> Kernels:
    """The kernels for ``block``, compiled once for each process in a tenth of a second.

    By llvmlite for the processor at hand (extra ``fast``).
    """
    engine = machine.engine_of(_Source(block).text)
    return Kernels(machine.kernel(engine, "forward"), machine.kernel(engine, "backward"))


class BlockSource(machine.Source):
    """Writes kernels of a block; Python's loops are what is unrolled.

    A *chunk* is as many channels as a vector has lanes.

    Args:
        block: the layers.
        lanes: of a vector.
    """

    def __init__(self, block: FusedBlock, lanes: int) -> None:
        super().__init__(lanes)
        self.block = block
        self.codes = self.ir.VectorType(self.byte, lanes)

    def winner(self, b: Any, corners: Sequence[Any], bias: Any) -> tuple[Any, Any]:
        """The output of a window's four ``corners``, and which of them it is."""
        # Among equals the first in reading order, as in PyTorch.
        best = corners[0]
        place = self.code(0)
        for at in range(1, len(CORNERS)):
            larger = b.fcmp_ordered(">", corners[at], best)
            best = b.select(larger, corners[at], best)
            place = b.select(larger, self.code(at), place)
        best = b.fadd(best, bias)
        if self.block.relu:
            dead = b.fcmp_ordered("<=", best, self.zero)
            best = b.select(dead, self.zero, best)
            place = b.select(dead, self.code(DEAD), place)
        return best, place

    def corner(self, b: Any, image: Any, row: Any, column: Any, size: tuple[int, int]) -> Any:
        """Number of the pixel at a window's upper left, in images of ``size``."""
        height, width = size
        line = b.add(b.mul(image, self.constant(height)), b.mul(row, self.constant(2)))
        return b.add(b.mul(line, self.constant(width)), b.mul(column, self.constant(2)))

    def output(self, b: Any, image: Any, row: Any, column: Any, channel: Any) -> Any:
        """Offset of a pooled output's channel."""
        height, width = self.block.pooled
        line = b.add(b.mul(image, self.constant(height)), row)
        place = b.add(b.mul(line, self.constant(width)), column)
        return b.add(b.mul(place, self.constant(self.block.channels)), channel)

    def code(self, value: int) -> Any:
        """A constant byte in every lane: a corner of a window, or none."""
        return self.ir.Constant(self.codes, [value] * self.lanes)


class _Source(BlockSource):
    """LLVM's representation of both kernels.

    Args:
        block: the layers.
    """

    def __init__(self, block: FusedBlock) -> None:
        super().__init__(block, 2 * LANES if block.channels % (2 * LANES) == 0 else LANES)

    @property
    def text(self) -> str:
        """LLVM assembly of the module, with its forward and backward functions."""
        self._forward()
        self._backward()
        return str(self.module)

    def _forward(self) -> None:
        """The kernel ``forward`` (see ``Kernels``): each 2×2 window of sums stays in registers."""
        block = self.block
        b, (batch, images, weights, bias, y, places) = self.function("forward")
        with self.loop(b, batch) as image, self.loop(b, block.channels // self.lanes) as chunk:
            channel = b.mul(chunk, self.constant(self.lanes))
            with self.loop(b, block.pooled[0]) as row, self.loop(b, block.pooled[1]) as column:
                pixel = self._window(b, images, image, row, column)
                sums = [self.zero] * len(CORNERS)
                for number, (c, i, j) in enumerate(block.taps):
                    weight = self.load(b, weights, self._tap(b, number, channel))
                    for at, (down, right) in enumerate(CORNERS):
                        value = pixel(c, i + down, j + right)
                        sums[at] = b.call(self.fma, [value, weight, sums[at]])
                best, place = self.winner(b, sums, self.load(b, bias, channel))
                there = self.output(b, image, row, column, channel)
                self.store(b, best, y, there)
                self.store(b, place, places, there, self.codes)
        b.ret_void()

    def _backward(self) -> None:
        block = self.block
        b, (batch, images, dy, places, dweights, dbias) = self.function("backward")
        area = block.kernel[0] * block.kernel[1]
        sums = [b.alloca(self.vector) for _ in range(area + 1)]  # the last is the bias's
        with self.loop(b, batch) as image, self.loop(b, block.channels // self.lanes) as chunk:
            channel = b.mul(chunk, self.constant(self.lanes))
            # The sums of one image and input channel fit the registers.
            for first in range(0, len(block.taps), area):
                taps = block.taps[first : first + area]
                for cell in sums:
                    b.store(self.zero, cell)
                with (
                    self.loop(b, block.pooled[0]) as row,
                    self.loop(b, block.pooled[1]) as column,
                ):
                    pixel = self._window(b, images, image, row, column)
                    there = self.output(b, image, row, column, channel)
                    gradient = self.load(b, dy, there)
                    place = self.load(b, places, there, self.codes)
                    shares = [
                        b.select(b.icmp_unsigned("==", place, self.code(at)), gradient, self.zero)
                        for at in range(len(CORNERS))
                    ]
                    for (c, i, j), cell in zip(taps, sums, strict=False):
                        total = b.load(cell)
                        for share, (down, right) in zip(shares, CORNERS, strict=True):
                            value = pixel(c, i + down, j + right)
                            total = b.call(self.fma, [value, share, total])
                        b.store(total, cell)
                    alive = b.icmp_unsigned("!=", place, self.code(DEAD))
                    b.store(
                        b.fadd(b.load(sums[-1]), b.select(alive, gradient, self.zero)), sums[-1]
                    )
                for number, cell in enumerate(sums[:-1], first):
                    self._add(b, cell, dweights, self._tap(b, number, channel))
                if first == 0:
                    self._add(b, sums[-1], dbias, channel)
        b.ret_void()

    def _window(self, b: Any, images: Any, image: Any, row: Any, column: Any) -> Any:
        """Returns the reader of pixels relative to a window's upper left corner.

        ``images``: their address. ``image``: number of the image. ``row``, ``column``: of the
        pooled output.

        Returns:
            (channel, y, x) -> the pixel in every lane, read once each.
        """
        _, width = self.block.image
        depth = self.block.channels_in
        corner = self.corner(b, image, row, column, self.block.image)
        origin = b.mul(corner, self.constant(depth))

        @cache
        def pixel(c: int, y: int, x: int) -> Any:
            offset = b.add(origin, self.constant((y * width + x) * depth + c))
            return self.in_every_lane(b, self.load(b, images, offset, self.real))

        return pixel

    def _tap(self, b: Any, number: int, channel: Any) -> Any:
        """Offset of a chunk of one tap's weights."""
        return b.add(self.constant(number * self.block.channels), channel)

    def _add(self, b: Any, cell: Any, base: Any, offset: Any) -> None:
        """Add what is in ``cell`` to the reals at ``offset``."""
        self.store(b, b.fadd(self.load(b, base, offset), b.load(cell)), base, offset)
