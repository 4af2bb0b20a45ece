"""Machine code from LLVM's intermediate representation, by llvmlite, for the processor at hand.

llvmlite's wheel holds the compiler, so that nothing else is needed where Murmur is installed.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any


def engine_of(text: str) -> Any:
    """Compile LLVM assembly; the engine gives ``kernel`` its functions, and owns their code."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten()
    )
    module = binding.parse_assembly(text)
    passes = binding.create_pass_builder(
        machine, binding.create_pipeline_tuning_options(speed_level=1)
    )
    passes.getModulePassManager().run(module, passes)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


def kernel(engine: Any, name: str, numbers: int = 1, addresses: int = 5) -> Callable[..., None]:
    """A compiled function of so many numbers (int64), then addresses; it keeps its engine."""
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * numbers, *[ctypes.c_void_p] * addresses)
    found = signature(engine.get_function_address(name))
    found.engine = engine  # type: ignore[attr-defined]
    return found


def has_avx512() -> bool:
    """Whether the processor has vectors of 16 reals, and 32 registers for them."""
    from llvmlite import binding

    return bool(binding.get_host_cpu_features().get("avx512f"))


class Source:
    """Writes a module of LLVM's representation.

    In its methods ``b`` is llvmlite's builder, which adds instructions one after the other, and
    what they return stands for a value of the running program.

    Args:
        lanes: of a vector.
    """

    def __init__(self, lanes: int) -> None:
        from llvmlite import ir

        self.ir = ir
        self.lanes = lanes
        self.real = ir.FloatType()
        self.byte = ir.IntType(8)
        self.integer = ir.IntType(64)
        self.place = ir.IntType(32)
        self.vector = ir.VectorType(self.real, lanes)
        self.zero = ir.Constant(self.vector, [0.0] * lanes)
        self.module = ir.Module()

    @cached_property
    def fma(self) -> Any:
        """a·b + c in every lane, rounded once."""
        kind = self.ir.FunctionType(self.vector, [self.vector] * 3)
        return self.ir.Function(self.module, kind, f"llvm.fma.v{self.lanes}f32")

    def function(self, name: str, numbers: int = 1, addresses: int = 5) -> tuple[Any, Any]:
        """The builder and the arguments of a kernel: numbers, then addresses of separate memory."""
        ir = self.ir
        kinds = [self.integer] * numbers + [ir.PointerType(self.byte)] * addresses
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), kinds), name)
        for argument in function.args[numbers:]:
            argument.add_attribute("noalias")
        return ir.IRBuilder(function.append_basic_block()), function.args

    @contextmanager
    def loop(self, b: Any, count: Any) -> Iterator[Any]:
        """Builds a loop over the yielded index, run ``count`` times, at least once."""
        before = b.block
        head = b.append_basic_block()
        after = b.append_basic_block()
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(self.integer)
        index.add_incoming(self.constant(0), before)
        yield index
        following = b.add(index, self.constant(1))
        index.add_incoming(following, b.block)
        if isinstance(count, int):
            count = self.constant(count)
        b.cbranch(b.icmp_unsigned("<", following, count), head, after)
        b.position_at_end(after)

    def load(self, b: Any, base: Any, offset: Any, kind: Any = None) -> Any:
        """The value at ``offset``; a vector of reals unless ``kind`` says otherwise."""
        address, size = self._address(b, base, offset, kind or self.vector)
        return b.load(address, align=size)

    def store(self, b: Any, value: Any, base: Any, offset: Any, kind: Any = None) -> None:
        """Write ``value`` at ``offset``; a vector of reals unless ``kind`` says otherwise."""
        address, size = self._address(b, base, offset, kind or self.vector)
        b.store(value, address, align=size)

    def in_every_lane(self, b: Any, value: Any) -> Any:
        """A vector of one real."""
        nowhere = self.ir.Constant(self.vector, self.ir.Undefined)
        everywhere = self.ir.Constant(self.ir.VectorType(self.place, self.lanes), [0] * self.lanes)
        lane = b.insert_element(nowhere, value, self.ir.Constant(self.place, 0))
        return b.shuffle_vector(lane, nowhere, everywhere)

    def plus(self, b: Any, offset: Any, more: int) -> Any:
        """``offset`` and a constant."""
        return b.add(offset, self.constant(more))

    def constant(self, value: int) -> Any:
        """A constant of 64 bits."""
        return self.ir.Constant(self.integer, value)

    def _address(self, b: Any, base: Any, offset: Any, kind: Any) -> tuple[Any, int]:
        """A typed address at ``offset`` elements from ``base``, and the bytes of an element."""
        element = kind
        if isinstance(kind, self.ir.VectorType):
            element = kind.element
        size = 4
        if isinstance(element, self.ir.IntType):
            size = element.width // 8
        address = b.gep(base, [b.mul(offset, self.constant(size))])
        return b.bitcast(address, self.ir.PointerType(kind)), size
