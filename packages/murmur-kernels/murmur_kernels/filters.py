"""Per-sample gradients of a convolution's weight, without copies of its patches.

Opacus copies the patch under each place of the output and multiplies the copies with the residuals.
Here the patches are read where they lie, to the same bits. MKL's product adds up the places in
blocks: each from 0 on, by products and sums that are rounded once, and then the blocks. How long a
block is differs between processors (192 places by AVX2). It is tried on made-up numbers, for each
size of layer and batch, and where no length has PyTorch's bits, Opacus does the work.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from murmur_kernels import machine

_LANES = 8
_VECTORS = 2  # of channels in a tile
_TAPS = 4  # in a tile, whose sums fit the registers
_UNIT = 16  # places, of which a block has a multiple


class _Offsets(NamedTuple):
    """Where numbers lie within an image.

    Attributes:
        taps: of each tap under the output's first place.
        places: of each place of the output under the first tap.
    """

    taps: NDArray[np.int64]
    places: NDArray[np.int64]


class Filters:
    """The kernel, compiled once; tensors are float32 on the processor."""

    def __init__(self) -> None:
        self._kernel = machine.kernel(machine.engine_of(_Source(_LANES).text), "filters", 7, 6)
        self._block = lru_cache(maxsize=64)(self._tried)

    def samples(self, layer: nn.Conv2d, inputs: Tensor, residuals: Tensor) -> Tensor | None:
        """Per-sample gradients (B, entries) of the layer's weight; None where Opacus has to.

        Args:
            layer: gives the geometry.
            inputs: (B, C, H, W).
            residuals: gradients of the layer's outputs, (B, channels, height, width).
        """
        plain = layer.groups == 1 and layer.padding_mode == "zeros" and inputs.dim() == 4
        if not plain or isinstance(layer.padding, str):
            return None
        count, channels, height, width = residuals.shape
        taps = layer.weight[0].numel()
        if channels % (_LANES * _VECTORS) or taps < _TAPS:
            return None
        block = self._block(count, channels, taps, height * width)
        if block is None:
            return None
        down, right = layer.padding
        images = nn.functional.pad(inputs, (right, right, down, down)).contiguous()
        offsets = _offsets(
            images.shape[1:], layer.kernel_size, layer.stride, layer.dilation, (height, width)
        )
        return self._sum(images, residuals.permute(0, 2, 3, 1).contiguous(), offsets, block)

    def _tried(self, count: int, channels: int, taps: int, places: int) -> int | None:
        """Places in a block of PyTorch's product of these sizes; None where it has other sums."""
        blocks = list(range(_UNIT, places + _UNIT, _UNIT))
        generator = torch.Generator().manual_seed(0)
        residuals = torch.randn(count, channels, places, generator=generator)
        patches = torch.randn(count, taps, places, generator=generator)
        expected = torch.einsum("noq,npq->nop", residuals, patches).flatten(1)
        offsets = _Offsets(np.arange(taps) * places, np.arange(places))
        turned = residuals.transpose(1, 2).contiguous()
        # One example rules out most lengths.
        for few in (1, count):
            blocks = [
                block
                for block in blocks
                if torch.equal(
                    self._sum(patches[:few], turned[:few], offsets, block), expected[:few]
                )
            ]
        return max(blocks, default=None)

    def _sum(self, images: Tensor, residuals: Tensor, offsets: _Offsets, block: int) -> Tensor:
        """Sums over places of residual · number under a tap, (B, channels · taps).

        Args:
            images: (B, …), contiguous.
            residuals: (B, height, width, channels) or (B, places, channels), contiguous.
            offsets: within an image.
            block: places that are added up from 0 on.
        """
        count, channels = len(images), residuals.shape[-1]
        taps, places = (len(part) for part in offsets)
        # The last tile may share taps with the one before.
        starts = np.minimum(np.arange(0, taps, _TAPS), taps - _TAPS)
        found = torch.empty(count, channels * taps)
        self._kernel(
            *(count, channels, taps, places, len(starts), block, images[0].numel()),
            *(images.data_ptr(), residuals.data_ptr()),
            *(part.ctypes.data for part in (*offsets, starts)),
            found.data_ptr(),
        )
        return found


@lru_cache(maxsize=64)
def _offsets(
    image: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    output: tuple[int, int],
) -> _Offsets:
    """Offsets of a convolution over images (C, H, W)."""
    numbers = np.arange(np.prod(image)).reshape(image)
    rows, columns = (np.arange(size) * step for size, step in zip(kernel, dilation, strict=True))
    taps = numbers[:, rows][:, :, columns]
    rows, columns = (np.arange(size) * step for size, step in zip(output, stride, strict=True))
    return _Offsets(taps.ravel(), numbers[0, rows][:, columns].ravel())


class _Source(machine.Source):
    """LLVM's representation of the kernel ``filters``; its arguments as in ``Filters._sum``.

    A *tile* is two vectors of channels for each of five taps.
    """

    @property
    def text(self) -> str:
        """LLVM assembly of the module."""
        b, arguments = self.function("filters", 7, 6)
        count, channels, taps, places, tiles, block, entries, *addresses = arguments
        images, residuals, tap_offsets, place_offsets, starts, found = addresses
        size = _VECTORS * _TAPS
        totals = [b.alloca(self.vector) for _ in range(size)]
        sums = [b.alloca(self.vector) for _ in range(size)]
        width = self.constant(_VECTORS * _LANES)
        blocks = b.udiv(b.add(places, b.sub(block, self.constant(1))), block)
        with self.loop(b, count) as example, self.loop(b, b.udiv(channels, width)) as group:
            channel = b.mul(group, width)
            image = b.mul(example, entries)
            with self.loop(b, tiles) as tile:
                first = self.load(b, starts, tile, self.integer)
                corners = [
                    b.add(image, self.load(b, tap_offsets, self.plus(b, first, tap), self.integer))
                    for tap in range(_TAPS)
                ]
                for cell in totals:
                    b.store(self.zero, cell)
                with self.loop(b, blocks) as number:
                    for cell in sums:
                        b.store(self.zero, cell)
                    begin = b.mul(number, block)
                    left = b.sub(places, begin)
                    steps = b.select(b.icmp_unsigned("<", left, block), left, block)
                    with self.loop(b, steps) as step:
                        place = b.add(begin, step)
                        line = b.add(b.mul(example, places), place)
                        start = b.add(b.mul(line, channels), channel)
                        vectors = [
                            self.load(b, residuals, self.plus(b, start, vector * _LANES))
                            for vector in range(_VECTORS)
                        ]
                        offset = self.load(b, place_offsets, place, self.integer)
                        for tap, corner in enumerate(corners):
                            there = b.add(corner, offset)
                            value = self.in_every_lane(b, self.load(b, images, there, self.real))
                            for cell, vector in zip(sums[tap * _VECTORS :], vectors, strict=False):
                                b.store(b.call(self.fma, [value, vector, b.load(cell)]), cell)
                    for total, cell in zip(totals, sums, strict=True):
                        b.store(b.fadd(b.load(total), b.load(cell)), total)
                line = b.add(b.mul(example, channels), channel)
                for index, total in enumerate(totals):
                    tap, vector = divmod(index, _VECTORS)
                    value = b.load(total)
                    for lane in range(_LANES):
                        row = self.plus(b, line, vector * _LANES + lane)
                        there = b.add(b.mul(row, taps), self.plus(b, first, tap))
                        entry = b.extract_element(value, self.ir.Constant(self.place, lane))
                        self.store(b, entry, found, there, self.real)
        b.ret_void()
        return str(self.module)
