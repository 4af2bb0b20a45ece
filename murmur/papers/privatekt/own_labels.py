"""Contributions of clients that label different images: cells of one histogram of all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from murmur.learning.codec import Integers, MalformedError, require_array


@dataclass(frozen=True)
class OwnLabelCodec:
    """``count`` labels of ``categories`` for each of ``clients``, who have images of their own.

    One client sends ``count`` cells, image · ``categories`` + label; summed they are a histogram
    (clients · count, categories) in which every image has one label at most.
    """

    count: int
    clients: int
    categories: int

    @property
    def shape(self) -> tuple[int, int]:
        """(clients · count, categories)."""
        return self.clients * self.count, self.categories

    @property
    def packed_bytes(self) -> int:
        """Four for each cell."""
        return 4 * self.count

    def pack(self, release: NDArray) -> NDArray[np.int32]:
        """Cells (count,) as int32."""
        return np.ascontiguousarray(release, dtype=np.int32)

    def expand(self, packed: NDArray, weight: int) -> Integers:
        """``weight`` in each of one client's cells, which are of its own images."""
        require_array(packed, np.int32, (self.count,))
        images = packed.astype(np.int64) // self.categories
        first = images[0] - images[0] % self.count
        if packed.min() < 0 or not np.array_equal(images, first + np.arange(self.count)):
            raise MalformedError("cells are not those of one client's images")
        if images[-1] >= self.shape[0]:
            raise MalformedError(f"image {images[-1]} was not asked about")
        total = np.zeros(self.shape, np.int64)
        total[images, packed % self.categories] = weight
        return total

    def check_total(self, total: NDArray, weight: int) -> Integers:
        """Every image has one label at most, and every client ``count`` of them."""
        require_array(total, np.int64, self.shape)
        rows = total.sum(axis=1)
        if total.min() < 0 or rows.max() > 1 or rows.sum() != weight * self.count:
            raise MalformedError(f"not the labels of {weight} clients")
        return total

    def limits(self, weight: int) -> tuple[int, int]:
        """One label at most in a cell."""
        return 0, weight

    @property
    def capacity(self) -> int:
        """Each client counts once."""
        return self.clients
