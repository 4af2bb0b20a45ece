"""Convolution, 2×2 maximum pooling, bias and ReLU in one pass, compiled for one geometry.

Done one after the other these are bounded by memory: every pixel becomes a value for each channel,
written and read again before three quarters are thrown away. Here the four places of a window stay
in registers, the lanes of a vector being channels, and only the largest is written.

The kernels are generated as LLVM's intermediate representation and compiled by llvmlite, whose
wheel holds the compiler (extra ``fast``). Every product and sum is an explicit fused one in a fixed
order, so that the bits depend neither on the batch nor on the width of the processor's vectors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib.util import find_spec
from typing import Any

_CORNERS = ((0, 0), (0, 1), (1, 0), (1, 1))
_DEAD = len(_CORNERS)  # the place written where ReLU lets no gradient through


def available() -> bool:
    """Whether llvmlite is installed."""
    return find_spec("llvmlite") is not None


@dataclass(frozen=True)
class Geometry:
    """Of one block; images are channels-last and already padded.

    ``channels_in``, ``channels``: the latter a multiple of 8. ``kernel``: (height, width).
    ``image``: (height, width), padding included. ``relu``: whether ReLU follows.
    """

    channels_in: int
    channels: int
    kernel: tuple[int, int]
    image: tuple[int, int]
    relu: bool

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width of the output; a last odd row or column is left out."""
        (height, width), (kernel_y, kernel_x) = self.image, self.kernel
        return (height - kernel_y + 1) // 2, (width - kernel_x + 1) // 2

    @property
    def taps(self) -> list[tuple[int, int, int]]:
        """(channel, y, x) of the weights, in the order in which they are added up."""
        rows, columns = map(range, self.kernel)
        return [(c, y, x) for c in range(self.channels_in) for y in rows for x in columns]


@dataclass(frozen=True)
class Kernels:
    """Machine code; addresses are of float32, but for ``places`` (bytes).

    ``forward(batch, images, weights, bias, y, places)`` and
    ``backward(batch, images, dy, places, dweights, dbias)``, which adds to the last two. Weights
    are (taps, channels), outputs (B, height, width, channels). ``engine`` owns the code.
    """

    forward: Callable[..., None]
    backward: Callable[..., None]
    engine: Any


@lru_cache(maxsize=16)
def compiled(geometry: Geometry) -> Kernels:
    """The kernels for ``geometry``, compiled once per process in a tenth of a second."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten()
    )
    module = binding.parse_assembly(_Source(geometry).text)
    passes = binding.create_pass_builder(
        machine, binding.create_pipeline_tuning_options(speed_level=1)
    )
    passes.getModulePassManager().run(module, passes)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    signature = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * 5)
    forward, backward = map(engine.get_function_address, ("forward", "backward"))
    return Kernels(signature(forward), signature(backward), engine)


class _Source:
    """LLVM's representation of both kernels; Python's loops are what is unrolled."""

    def __init__(self, geometry: Geometry) -> None:
        from llvmlite import ir

        self.ir, self.geometry = ir, geometry
        self.lanes = 16 if geometry.channels % 16 == 0 else 8
        self.real, self.byte, self.integer = ir.FloatType(), ir.IntType(8), ir.IntType(64)
        self.vector = ir.VectorType(self.real, self.lanes)
        self.codes = ir.VectorType(self.byte, self.lanes)
        self.module = ir.Module()

    @property
    def text(self) -> str:
        """Of the whole module."""
        self._forward()
        self._backward()
        return str(self.module)

    @cached_property
    def _fma(self) -> Any:
        kind = self.ir.FunctionType(self.vector, [self.vector] * 3)
        return self.ir.Function(self.module, kind, f"llvm.fma.v{self.lanes}f32")

    def _forward(self) -> None:
        shape, b, (batch, images, weights, bias, y, places) = self._function("forward", 5)
        zero = self._all(0.0)
        with self._loop(b, batch) as image, self._loop(b, shape.channels // self.lanes) as chunk:
            channel = b.mul(chunk, self._int(self.lanes))
            with self._loop(b, shape.pooled[0]) as row, self._loop(b, shape.pooled[1]) as column:
                pixel = self._window(b, images, image, row, column)
                sums = [zero] * len(_CORNERS)
                for number, (c, i, j) in enumerate(shape.taps):
                    weight = self._load(b, weights, self._tap(b, number, channel))
                    for at, (down, right) in enumerate(_CORNERS):
                        value = pixel(c, i + down, j + right)
                        sums[at] = b.call(self._fma, [value, weight, sums[at]])
                # Among equals the first in reading order, as in PyTorch.
                best, place = sums[0], self._code(0)
                for at in range(1, len(_CORNERS)):
                    larger = b.fcmp_ordered(">", sums[at], best)
                    best = b.select(larger, sums[at], best)
                    place = b.select(larger, self._code(at), place)
                best = b.fadd(best, self._load(b, bias, channel))
                if shape.relu:
                    dead = b.fcmp_ordered("<=", best, zero)
                    best = b.select(dead, zero, best)
                    place = b.select(dead, self._code(_DEAD), place)
                there = self._output(b, image, row, column, channel)
                self._store(b, best, y, there)
                self._store(b, place, places, there, self.codes)
        b.ret_void()

    def _backward(self) -> None:
        shape, b, (batch, images, dy, places, dweights, dbias) = self._function("backward", 5)
        zero, area = self._all(0.0), shape.kernel[0] * shape.kernel[1]
        with self._loop(b, batch) as image, self._loop(b, shape.channels // self.lanes) as chunk:
            channel = b.mul(chunk, self._int(self.lanes))
            # The sums of one image and input channel fit the registers.
            for first in range(0, len(shape.taps), area):
                taps = shape.taps[first : first + area]
                sums = [b.alloca(self.vector) for _ in (*taps, "bias")]
                for cell in sums:
                    b.store(zero, cell)
                with (
                    self._loop(b, shape.pooled[0]) as row,
                    self._loop(b, shape.pooled[1]) as column,
                ):
                    pixel = self._window(b, images, image, row, column)
                    there = self._output(b, image, row, column, channel)
                    gradient = self._load(b, dy, there)
                    place = self._load(b, places, there, self.codes)
                    shares = [
                        b.select(b.icmp_unsigned("==", place, self._code(at)), gradient, zero)
                        for at in range(len(_CORNERS))
                    ]
                    for (c, i, j), cell in zip(taps, sums, strict=False):
                        total = b.load(cell)
                        for share, (down, right) in zip(shares, _CORNERS, strict=True):
                            value = pixel(c, i + down, j + right)
                            total = b.call(self._fma, [value, share, total])
                        b.store(total, cell)
                    alive = b.icmp_unsigned("!=", place, self._code(_DEAD))
                    b.store(b.fadd(b.load(sums[-1]), b.select(alive, gradient, zero)), sums[-1])
                for number, cell in enumerate(sums[:-1], first):
                    self._add(b, cell, dweights, self._tap(b, number, channel))
                if first == 0:
                    self._add(b, sums[-1], dbias, channel)
        b.ret_void()

    def _function(self, name: str, addresses: int) -> tuple[Geometry, Any, Any]:
        """The geometry, the builder and the arguments of a kernel."""
        ir = self.ir
        kinds = [self.integer, *[ir.PointerType(self.byte)] * addresses]
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), kinds), name)
        for argument in function.args[1:]:
            argument.add_attribute("noalias")
        return self.geometry, ir.IRBuilder(function.append_basic_block()), function.args

    @contextmanager
    def _loop(self, b: Any, count: Any) -> Iterator[Any]:
        """What is built inside is done ``count`` times, at least once, for this index."""
        before, head, after = b.block, b.append_basic_block(), b.append_basic_block()
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(self.integer)
        index.add_incoming(self._int(0), before)
        yield index
        following = b.add(index, self._int(1))
        index.add_incoming(following, b.block)
        limit = self._int(count) if isinstance(count, int) else count
        b.cbranch(b.icmp_unsigned("<", following, limit), head, after)
        b.position_at_end(after)

    def _window(self, b: Any, images: Any, image: Any, row: Any, column: Any) -> Any:
        """Reads (channel, y, x) beside a place's upper left corner, in every lane, once each."""
        (height, width), depth = self.geometry.image, self.geometry.channels_in
        line = b.add(b.mul(image, self._int(height)), b.mul(row, self._int(2)))
        corner = b.add(b.mul(line, self._int(width)), b.mul(column, self._int(2)))
        origin = b.mul(corner, self._int(depth))
        number = self.ir.IntType(32)
        nowhere = self.ir.Constant(self.vector, self.ir.Undefined)
        everywhere = self.ir.Constant(self.ir.VectorType(number, self.lanes), [0] * self.lanes)

        @cache
        def pixel(c: int, y: int, x: int) -> Any:
            offset = b.add(origin, self._int((y * width + x) * depth + c))
            value = self._load(b, images, offset, self.real)
            lane = b.insert_element(nowhere, value, self.ir.Constant(number, 0))
            return b.shuffle_vector(lane, nowhere, everywhere)

        return pixel

    def _output(self, b: Any, image: Any, row: Any, column: Any, channel: Any) -> Any:
        height, width = self.geometry.pooled
        line = b.add(b.mul(image, self._int(height)), row)
        place = b.add(b.mul(line, self._int(width)), column)
        return b.add(b.mul(place, self._int(self.geometry.channels)), channel)

    def _tap(self, b: Any, number: int, channel: Any) -> Any:
        return b.add(self._int(number * self.geometry.channels), channel)

    def _address(self, b: Any, base: Any, offset: Any, kind: Any) -> tuple[Any, int]:
        size = 1 if kind is self.codes else 4
        address = b.gep(base, [b.mul(offset, self._int(size))])
        return b.bitcast(address, self.ir.PointerType(kind)), size

    def _load(self, b: Any, base: Any, offset: Any, kind: Any = None) -> Any:
        address, size = self._address(b, base, offset, kind or self.vector)
        return b.load(address, align=size)

    def _store(self, b: Any, value: Any, base: Any, offset: Any, kind: Any = None) -> None:
        address, size = self._address(b, base, offset, kind or self.vector)
        b.store(value, address, align=size)

    def _add(self, b: Any, cell: Any, base: Any, offset: Any) -> None:
        self._store(b, b.fadd(self._load(b, base, offset), b.load(cell)), base, offset)

    def _int(self, value: int) -> Any:
        return self.ir.Constant(self.integer, value)

    def _all(self, value: float) -> Any:
        return self.ir.Constant(self.vector, [value] * self.lanes)

    def _code(self, value: int) -> Any:
        return self.ir.Constant(self.codes, [value] * self.lanes)
