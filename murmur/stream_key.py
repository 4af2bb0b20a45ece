"""The key of an experiment stream, as NumPy's bit generators take it (``murmur.common``)."""

from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray


class StreamKey(ISeedSequence):
    """Gives ``key``, uint64 (2,), to a Philox generator.

    The very generator of ``Philox(key=key)``, which however draws 128 bits from the operating
    system for a seed that it then does not use: two thirds of the time that it takes to make one.
    """

    def __init__(self, key: NDArray[np.uint64]) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """The key; ValueError for anything else than two words of 64 bits."""
        if (n_words, np.dtype(dtype)) != (2, np.dtype(np.uint64)):
            raise ValueError(f"n_words={n_words} of {dtype}: a stream's key is two of uint64")
        return self.key
