"""The form of labels of which each client has images of its own."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from murmur.learning.array_bytes import MalformedError, require_array
from murmur.learning.codec import Codec, Integers


@dataclass(frozen=True)
class OwnLabelCodec(Codec):
    """Labels of images that each client has to itself. See ``Codec``.

    One client sends ``count`` cells, image · ``categories`` + label; summed they are a histogram
    (clients · count, categories) in which every image has one label at most.

    Attributes:
        count: labels of one client.
        clients: of the cohort.
        categories: C.
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

    def check(self, packed: NDArray) -> None:
        """MalformedError unless all cells are of one client's images."""
        require_array(packed, np.int32, (self.count,))
        images = packed.astype(np.int64) // self.categories
        first = images[0] - images[0] % self.count
        if packed.min() < 0 or not np.array_equal(images, first + np.arange(self.count)):
            raise MalformedError("cells are not those of one client's images")
        if images[-1] >= self.shape[0]:
            raise MalformedError(f"image {images[-1]} was not asked about")

    def add_to(self, total: Integers, packed: NDArray, weight: int) -> None:
        """``weight`` to each of one client's cells."""
        self.check(packed)
        total[packed // self.categories, packed % self.categories] += weight

    def check_total(self, total: NDArray, weight: int) -> Integers:
        """MalformedError unless images have one label at most, and clients ``count`` of them."""
        require_array(total, np.int64, self.shape)
        rows = total.sum(axis=1)
        if total.min() < 0 or rows.max() > 1 or rows.sum() != weight * self.count:
            raise MalformedError(f"not the labels of {weight} clients")
        return total

    @property
    def capacity(self) -> int:
        """Each client counts once."""
        return self.clients
