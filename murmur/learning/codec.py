"""Contributions: what one client releases in a round, and how such releases are summed.

Every algorithm here is linear in what its clients release, so a node sums its clients and the
server sums the nodes. Sums are integers in 64 bits: exact, hence the same for every grouping of
clients over nodes, and what secure aggregation needs anyway.

A codec is held by both ends. ``pack`` gives the compact form in which one client's release
travels (labels as bytes, bits packed, weights as float32); ``expand`` turns that form, which may
come from a hostile client, into the integers that are summed; ``check_total`` says whether an
already summed array is possible at all. ``sums`` holds running sums, ``array_bytes`` parses arrays
from the network.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from murmur.checks import blocks, is_finite, is_within
from murmur.learning.array_bytes import MalformedError, require_array

Integers = NDArray[np.int64]


class Codec(Protocol):
    """The form in which one algorithm's contributions travel and are summed.

    Both ends hold one, built from the run's settings; ``LabelCodec``, ``BitCodec``, ``WeightCodec``
    and ``GridCodec`` are the kinds that there are.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the summed integers."""

    @property
    def packed_bytes(self) -> int:
        """Bytes of one client's packed release."""

    def pack(self, release: NDArray) -> NDArray:
        """One client's release as it travels; it may be ``release`` itself."""

    def check(self, packed: NDArray) -> None:
        """See whether it can be one client's packed release.

        Raises:
            MalformedError: ``packed`` has a wrong type, shape or value.
        """

    def add_to(self, total: Integers, packed: NDArray, weight: int) -> None:
        """Add one client's packed release, ``weight`` times, to ``total`` of ``shape``, in place.

        Raises:
            MalformedError: as ``check``; nothing is added then.
        """

    def expand(self, packed: NDArray, weight: int) -> Integers:
        """The integers that one client's packed release adds to the sum.

        Raises:
            MalformedError: as ``check``.
        """
        total = np.zeros(self.shape, np.int64)
        self.add_to(total, packed, weight)
        return total

    def summand(self, packed: NDArray, weight: int) -> "NDArray[np.int64] | Summand":
        """One client's summand of a secure sum, (n + 1,): ``expand``, flat, then its weight.

        Raises:
            MalformedError: as ``check``.
        """
        vector = np.zeros(math.prod(self.shape) + 1, np.int64)
        self.add_to(vector[:-1].reshape(self.shape), packed, weight)
        vector[-1] = weight
        return vector

    def check_total(self, total: NDArray, weight: int) -> Integers:
        """``total`` if it can be a sum of releases of total ``weight``.

        Raises:
            MalformedError: it cannot.
        """
        require_array(total, np.int64, self.shape)
        self._require_within(total, weight)
        return total

    def limits(self, weight: int) -> tuple[int, int]:
        """The least and the greatest integer that a sum of total ``weight`` can hold.

        Here those of counts, from nobody to everybody.
        """
        return 0, weight

    def _require_within(self, values: NDArray, weight: int) -> None:
        """MalformedError unless all ``values`` lie within the limits of ``weight``."""
        least, greatest = self.limits(weight)
        if not is_within(values, least, greatest):
            raise MalformedError(
                f"an integer lies outside {least}..{greatest}, all that a weight of {weight} "
                "can sum to"
            )

    @property
    def capacity(self) -> int:
        """The largest total weight whose sum cannot overflow 64 bits."""


@dataclass(frozen=True)
class LabelCodec(Codec):
    """Labels: bytes on the wire, a histogram when summed.

    Attributes:
        count: of labels that a client releases.
        categories: labels lie below it; at most 256.
    """

    count: int
    categories: int

    @property
    def shape(self) -> tuple[int, int]:
        """(count, categories)."""
        return self.count, self.categories

    @property
    def packed_bytes(self) -> int:
        """One for each label."""
        return self.count

    def pack(self, release: NDArray) -> NDArray[np.uint8]:
        """Labels (count,) as bytes."""
        return np.ascontiguousarray(release, dtype=np.uint8)

    def check(self, packed: NDArray) -> None:
        """All labels are below the number of categories."""
        require_array(packed, np.uint8, (self.count,))
        if packed.size and packed.max() >= self.categories:
            raise MalformedError(f"label {packed.max()} is outside 0..{self.categories - 1}")

    def add_to(self, total: Integers, packed: NDArray, weight: int) -> None:
        """``weight`` in each row."""
        self.check(packed)
        total[np.arange(self.count), packed] += weight

    def check_total(self, total: NDArray, weight: int) -> Integers:
        """Every row counts every client exactly once."""
        require_array(total, np.int64, self.shape)
        if total.size and (total.min() < 0 or np.any(total.sum(axis=1) != weight)):
            raise MalformedError(f"a histogram row does not sum to the weight {weight}")
        return total

    @property
    def capacity(self) -> int:
        """A histogram cell holds at most the total weight; a row is summed when checked."""
        return 2**62 // self.categories


@dataclass(frozen=True)
class BitCodec(Codec):
    """Bits: 8 for each byte on the wire, counts of ones when summed.

    Attributes:
        size: number of bits.
    """

    size: int

    @property
    def shape(self) -> tuple[int]:
        """(size,)."""
        return (self.size,)

    @property
    def packed_bytes(self) -> int:
        """One for eight bits."""
        return (self.size + 7) // 8

    def pack(self, release: NDArray) -> NDArray[np.uint8]:
        """Bits (size,) as bool or 0/1, packed 8 per byte, zero-padded at the end."""
        return np.packbits(np.asarray(release, dtype=bool))

    def check(self, packed: NDArray) -> None:
        """Any bytes of the right number."""
        require_array(packed, np.uint8, (self.packed_bytes,))

    def add_to(self, total: Integers, packed: NDArray, weight: int) -> None:
        """``weight`` to the count of each one."""
        self.check(packed)
        total += np.unpackbits(packed, count=self.size).astype(np.int64) * weight

    @property
    def capacity(self) -> int:
        """A count of ones is at most the total weight."""
        return 2**62


@dataclass(frozen=True)
class VectorCodec(Codec):
    """Vectors whose entries become integers each by itself, in blocks; four bytes on the wire.

    Attributes:
        size: number of entries d.
    """

    size: int

    @property
    def shape(self) -> tuple[int]:
        """(size,)."""
        return (self.size,)

    @property
    def packed_bytes(self) -> int:
        """Four for each entry."""
        return 4 * self.size

    @abstractmethod
    def steps(self, values: NDArray, weight: int) -> Integers:
        """The integers that packed ``values``, some of the entries, add to a sum."""

    def add_to(self, total: Integers, packed: NDArray, weight: int) -> None:
        """Block by block, so that no copy of all is made."""
        self.check(packed)
        for block in blocks(packed.size):
            total[block] += self.steps(packed[block], weight)

    def summand(self, packed: NDArray, weight: int) -> "Summand":
        """As it is read."""
        self.check(packed)
        return Summand(self, packed, weight)


@dataclass(frozen=True)
class WeightCodec(VectorCodec):
    """Real numbers: float32 on the wire, fixed point when summed.

    A value is bounded, so that the sum of total weight W stays below 2^63 as long as W · bound <
    2^(63 − fraction_bits).

    Attributes:
        size: see ``VectorCodec``.
        fraction_bits: of the fixed point.
        bound: the largest absolute value of an entry.
    """

    fraction_bits: int = 30
    bound: float = 2.0**12

    def pack(self, release: NDArray) -> NDArray[np.float32]:
        """Reals (size,) as float32: those beyond the bound at the bound, NaN as 0.

        ``release`` itself where that is what it holds.
        """
        if release.dtype == np.float32 and is_within(release, -self.bound, self.bound):
            return release
        packed = np.empty(len(release), np.float32)
        for block in blocks(len(release)):
            values = np.clip(release[block], -self.bound, self.bound)  # faster than ``nan_to_num``
            np.copyto(values, 0, where=np.isnan(values))
            packed[block] = values
        return packed

    def check(self, packed: NDArray) -> None:
        """All values are finite and within the bound."""
        require_array(packed, np.float32, self.shape)
        if not is_within(packed, -self.bound, self.bound):
            if not is_finite(packed):
                raise MalformedError("a weight is not finite")
            raise MalformedError(f"a weight exceeds {self.bound:g} in absolute value")

    def steps(self, values: NDArray, weight: int) -> Integers:
        """round(value · 2^fraction_bits) · weight."""
        # A product with a power of two is exact, and several times faster than ldexp.
        scaled = np.multiply(values, 2.0**self.fraction_bits, dtype=np.float64)
        steps = np.rint(scaled, out=scaled).astype(np.int64)
        steps *= weight
        return steps

    def limits(self, weight: int) -> tuple[int, int]:
        """± weight · bound."""
        limit = int(self.bound * 2**self.fraction_bits) * weight
        return -limit, limit

    @property
    def grid(self) -> float:
        """Value of one step of the summed integers."""
        return 2.0**-self.fraction_bits

    @property
    def capacity(self) -> int:
        """Total weight W with W · bound · 2^fraction_bits < 2^63."""
        return (2**63 - 1) // int(self.bound * 2**self.fraction_bits)

    def mean(self, total: Integers, weight: int) -> NDArray[np.float64]:
        """The weighted mean that ``total`` stands for."""
        mean = total.astype(np.float64)
        np.ldexp(mean, -self.fraction_bits, out=mean)
        mean /= weight
        return mean


MAX_GRID_ENTRY = 2**31 - 1


@dataclass(frozen=True)
class GridCodec(VectorCodec):
    """``size`` integers in steps of ``grid``: int32 on the wire, 64 bits when summed.

    Attributes:
        size: see ``VectorCodec``.
        grid: what one step stands for.
        bound: the largest absolute value of an entry, at most 2³¹ − 1.
        spread: how much of the bound is there for independent noise around 0, many standard
            deviations of it; n entries then need √n times that and no more. For contributions of
            weight 1.
    """

    grid: float = 1.0
    bound: int = MAX_GRID_ENTRY
    spread: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.bound <= MAX_GRID_ENTRY:
            raise ValueError(f"bound={self.bound}: must lie in 1..{MAX_GRID_ENTRY}")
        if not 0 <= self.spread <= self.bound:
            raise ValueError(f"spread={self.spread}: must lie in 0..{self.bound}, the bound")

    def pack(self, release: NDArray) -> NDArray[np.int32]:
        """Integers (size,) as int32; what is beyond the bound is cut to it."""
        packed = np.empty(len(release), np.int32)
        for block in blocks(len(release)):
            packed[block] = np.clip(release[block], -self.bound, self.bound)
        return packed

    def check(self, packed: NDArray) -> None:
        """All integers are within the bound."""
        require_array(packed, np.int32, self.shape)
        self._require_within(packed, 1)

    def steps(self, values: NDArray, weight: int) -> Integers:
        """The integers, times ``weight``."""
        steps = values.astype(np.int64)
        steps *= weight
        return steps

    def limits(self, weight: int) -> tuple[int, int]:
        """± weight · bound, of which noise grows by the root of the weight."""
        noise = 0
        if self.spread:
            noise = math.isqrt(self.spread**2 * weight - 1) + 1
        most = (self.bound - self.spread) * weight + noise
        return -most, most

    @property
    def capacity(self) -> int:
        """Total weight W with W · bound below 2⁶⁰, which leaves room for the server's noise."""
        return 2**60 // self.bound

    def mean(self, total: NDArray, weight: float) -> NDArray[np.float64]:
        """The mean of ``total`` over ``weight``, as real numbers."""
        return total * (self.grid / weight)


@dataclass(frozen=True)
class Summand:
    """``Codec.summand`` of a vector, whose integers are made block by block, as they are read.

    Of a model's size there is nothing but ``packed``.

    Attributes:
        codec: whose entries are summed each by itself.
        packed: what the codec has checked.
        weight: of its client.
    """

    codec: VectorCodec
    packed: NDArray
    weight: int

    dtype = np.dtype(np.int64)

    def __len__(self) -> int:
        return self.codec.size + 1

    @property
    def shape(self) -> tuple[int]:
        """(n + 1,)."""
        return (len(self),)

    def __getitem__(self, block: slice) -> NDArray[np.int64]:
        """The integers of ``block``, which has no step; its place in the vector is from 0 on."""
        steps = self.codec.steps(self.packed[block], self.weight)
        if block.stop < len(self):
            return steps
        return np.append(steps, self.weight)


def vector_codec(size: int, bound: int | None) -> WeightCodec | GridCodec:
    """The form of vectors (size,): integers up to ``bound``, or real numbers where it is None."""
    if bound is None:
        return WeightCodec(size)
    return GridCodec(size, bound=bound)
