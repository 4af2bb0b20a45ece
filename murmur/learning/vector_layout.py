"""Named arrays side by side in one vector."""

import numpy as np
from numpy.typing import NDArray


class VectorLayout:
    """Named arrays side by side in one vector: a contribution may hold more than one.

    What is summed, clipped and noised is the whole.

    Args:
        sizes: entries of each, in their order.
    """

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes

    @property
    def size(self) -> int:
        """Entries of the whole vector."""
        return sum(self.sizes.values())

    def join(self, **arrays: NDArray) -> NDArray:
        """The vector (size,) of arrays (sizes[name],).

        Raises:
            ValueError: arrays of other names or sizes.
        """
        if {name: len(values) for name, values in arrays.items()} != self.sizes:
            found = ", ".join(f"{name}: {len(values)}" for name, values in arrays.items())
            raise ValueError(f"arrays {found}: must be of sizes {self.sizes}")
        return np.concatenate([arrays[name] for name in self.sizes])

    def split(self, vector: NDArray) -> dict[str, NDArray]:
        """The arrays in a vector (size,), by name."""
        ends = np.cumsum(list(self.sizes.values()))
        return dict(zip(self.sizes, np.split(vector, ends[:-1]), strict=True))
