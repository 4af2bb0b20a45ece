"""DP-SGD's clipped sums: clipping, rounding and summing in one pass, linear layers unmade.

Each example's gradient is multiplied by its factor, rounded towards zero onto the grid and added to
the sum (``murmur.learning.training.clipped_sums``). PyTorch writes and reads all gradients for each
of these; here a number stays in a register. A linear layer's gradient for one example is the
product of its residuals and its inputs, and never is in memory as a whole.

Each number comes from the operations that PyTorch does, in PyTorch's order, so that results have
the same bits. In which order PyTorch adds up a norm differs between processors. It is tried on
made-up numbers first, and where no known order has PyTorch's bits there are no kernels.

Read from ``Clipping``, what DP-SGD sees, down to ``_Source``, which writes the code.
"""

from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from murmur_kernels import machine
from murmur_kernels.filters import Filters

_LANES = (8, 16, 4)  # of PyTorch's vectors: AVX2, AVX-512, Arm
_BLOCK = 2048  # columns whose sums stay in the first-level cache
_TRIED = (16, 40, 560)  # examples, outputs, inputs


@lru_cache
def clipping(columns: int) -> "Clipping | None":
    """The kernels, compiled once for each process; None where PyTorch's norms have other bits.

    Args:
        columns: entries of a gradient that have a norm together.
    """
    generator = torch.Generator().manual_seed(0)
    count, outputs, inputs = _TRIED
    residuals = torch.randn(count, outputs, generator=generator)
    rows = torch.randn(count, inputs, generator=generator)
    products = (residuals[:, :, None] * rows[:, None]).flatten(1)
    parts = products.split(columns, dim=1)
    expected = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in parts])
    for lanes in _LANES:
        kernels = Clipping(lanes, columns)
        if torch.equal(kernels.norms(residuals, rows), expected):
            return kernels
    return None


class Clipping:
    """The kernels; all tensors are float32 and contiguous, on the processor.

    Args:
        lanes: of PyTorch's vectors.
        columns: entries of a gradient that have a norm together, a multiple of ``lanes``.
    """

    def __init__(self, lanes: int, columns: int) -> None:
        self._lanes = lanes
        self._columns = columns
        engine = machine.engine_of(_Source(lanes).text)
        self._norms, self._add_products, self._add_rows = (
            machine.kernel(engine, name, 4, 4) for name in ("norms", "add_products", "add_rows")
        )

    @cached_property
    def filters(self) -> Filters:
        """The kernel of convolutions."""
        return Filters()

    def fits(self, inputs: int) -> bool:
        """Tells whether a linear layer of so many ``inputs`` is one for ``norms``."""
        return inputs % self._lanes == 0

    def norms(self, residuals: Tensor, inputs: Tensor) -> Tensor:
        """Norms of the products' parts of ``columns`` entries, (parts, B); not finite where one is.

        Args:
            residuals: (B, outputs).
            inputs: (B, inputs), of a number that ``fits``.
        """
        count, outputs = residuals.shape
        width = inputs.shape[1]
        segments = _segments(outputs, width, self._columns, self._lanes)
        found = torch.empty(int(segments[-1, -1]) + 1, count)
        addresses = (residuals.data_ptr(), inputs.data_ptr(), segments.ctypes.data)
        self._norms(count, outputs, width, len(segments), *addresses, found.data_ptr())
        # The kernel leaves out products with 0, which infinity and NaN make NaN.
        found[:, ~torch.isfinite(inputs).all(dim=1)] = torch.nan
        return found

    def add_products(
        self, residuals: Tensor, inputs: Tensor, factors: Tensor, total: Tensor
    ) -> None:
        """Add all examples' clipped products to ``total``.

        Args:
            residuals: (B, outputs), finite.
            inputs: (B, inputs), finite, of a number that ``fits``.
            factors: (B, 1).
            total: (outputs, inputs).
        """
        count, outputs = residuals.shape
        width = inputs.shape[1]
        addresses = [part.data_ptr() for part in (residuals, inputs, factors, total)]
        self._add_products(count, outputs, width, width // self._lanes, *addresses)

    def add_rows(self, rows: Tensor, factors: Tensor, total: Tensor) -> None:
        """Add all examples' clipped ``rows`` (B, entries) to ``total`` (entries,).

        Args:
            rows: finite.
            factors: (B, 1).
            total: what they are added to.
        """
        rows = rows.contiguous()
        count, entries = rows.shape
        whole = entries - entries % self._lanes
        for start in range(0, whole, _BLOCK):
            chunks = min(_BLOCK, whole - start) // self._lanes
            addresses = (rows[:, start:].data_ptr(), factors.data_ptr(), total[start:].data_ptr())
            self._add_rows(count, entries, chunks, 0, *addresses, 0)
        if whole < entries:
            total[whole:] += rows[:, whole:].mul(factors).trunc_().sum(dim=0)


@lru_cache(maxsize=64)
def _segments(outputs: int, width: int, columns: int, lanes: int) -> NDArray[np.int64]:
    """Pieces of an example's gradient that belong to one output and to one norm, in order.

    Returns:
        Rows of (output, first input, vectors, number of the norm that ends here or -1).
    """
    entries = outputs * width
    cuts = sorted({*range(0, entries, columns), *range(0, entries, width), entries})
    rows = []
    for start, end in pairwise(cuts):
        ends = end % columns == 0 or end == entries
        number = start // columns if ends else -1
        rows.append((*divmod(start, width), (end - start) // lanes, number))
    return np.array(rows, dtype=np.int64)


class _Source(machine.Source):
    """LLVM's representation of the kernels, each of four numbers and four addresses."""

    @property
    def text(self) -> str:
        """LLVM assembly of the module."""
        self._norms()
        self._add_products()
        self._add_rows()
        return str(self.module)

    def _norms(self) -> None:
        """``(B, outputs, inputs, segments; residuals, inputs, segments, found)``.

        Squares are added lane by lane, then the lanes one after the other.
        """
        b, arguments = self.function("norms", 4, 4)
        count, outputs, width, pieces, residuals, inputs, segments, found = arguments
        squares = b.alloca(self.vector)
        with self.loop(b, count) as example:
            b.store(self.zero, squares)
            with self.loop(b, pieces) as piece:
                output, first, chunks, number = (
                    self.load(b, segments, self._at(b, piece, 4, k), self.integer) for k in range(4)
                )
                place = b.add(b.mul(example, outputs), output)
                residual = self.load(b, residuals, place, self.real)
                start = b.add(b.mul(example, width), first)
                with b.if_then(self._counts(b, residual)):
                    factor = self.in_every_lane(b, residual)
                    with self.loop(b, chunks) as chunk:
                        entry = self.load(b, inputs, self._chunk(b, start, chunk))
                        product = b.fmul(factor, entry)
                        b.store(b.fadd(b.load(squares), b.fmul(product, product)), squares)
                with b.if_then(b.icmp_signed(">=", number, self.constant(0))):
                    there = b.add(b.mul(number, count), example)
                    self.store(b, self._length(b, b.load(squares)), found, there, self.real)
                    b.store(self.zero, squares)
        b.ret_void()

    def _add_products(self) -> None:
        """``(B, outputs, inputs, vectors of a row; residuals, inputs, factors, total)``."""
        b, arguments = self.function("add_products", 4, 4)
        count, outputs, width, chunks, residuals, inputs, factors, total = arguments
        with self.loop(b, outputs) as output, self.loop(b, count) as example:
            place = b.add(b.mul(example, outputs), output)
            residual = self.load(b, residuals, place, self.real)
            with b.if_then(self._counts(b, residual)):
                every = self.in_every_lane(b, residual)
                factor = self.in_every_lane(b, self.load(b, factors, example, self.real))
                start = b.mul(example, width)
                row = b.mul(output, width)
                with self.loop(b, chunks) as chunk:
                    product = b.fmul(every, self.load(b, inputs, self._chunk(b, start, chunk)))
                    self._add(b, b.fmul(product, factor), total, self._chunk(b, row, chunk))
        b.ret_void()

    def _add_rows(self) -> None:
        """``(B, entries, vectors, _; rows, factors, total, _)``."""
        b, arguments = self.function("add_rows", 4, 4)
        count, entries, chunks, _, rows, factors, total, _ = arguments
        with self.loop(b, count) as example:
            factor = self.in_every_lane(b, self.load(b, factors, example, self.real))
            start = b.mul(example, entries)
            with self.loop(b, chunks) as chunk:
                entry = self.load(b, rows, self._chunk(b, start, chunk))
                there = self._chunk(b, self.constant(0), chunk)
                self._add(b, b.fmul(entry, factor), total, there)
        b.ret_void()

    def _counts(self, b: Any, residual: Any) -> Any:
        """Whether products with ``residual`` are anything but 0."""
        return b.fcmp_unordered("!=", residual, self.ir.Constant(self.real, 0.0))

    def _length(self, b: Any, squares: Any) -> Any:
        """Root of the sum of all lanes."""
        total, *others = (
            b.extract_element(squares, self.ir.Constant(self.place, lane))
            for lane in range(self.lanes)
        )
        for other in others:
            total = b.fadd(total, other)
        return b.call(self._intrinsic("sqrt", self.real, "f32"), [total])

    def _add(self, b: Any, value: Any, total: Any, offset: Any) -> None:
        """Add the whole part of ``value`` to the reals at ``offset``."""
        whole = b.call(self._intrinsic("trunc", self.vector, f"v{self.lanes}f32"), [value])
        self.store(b, b.fadd(self.load(b, total, offset), whole), total, offset)

    def _intrinsic(self, name: str, kind: Any, suffix: str) -> Any:
        """LLVM's function ``name`` of one value."""
        full = f"llvm.{name}.{suffix}"
        if full not in self.module.globals:
            self.ir.Function(self.module, self.ir.FunctionType(kind, [kind]), full)
        return self.module.globals[full]

    def _at(self, b: Any, row: Any, width: int, column: int) -> Any:
        """Offset of a number in a table."""
        return b.add(b.mul(row, self.constant(width)), self.constant(column))

    def _chunk(self, b: Any, start: Any, chunk: Any) -> Any:
        """Offset of the vector ``chunk`` behind ``start``."""
        return b.add(start, b.mul(chunk, self.constant(self.lanes)))
