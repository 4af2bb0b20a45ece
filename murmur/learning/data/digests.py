"""Digests of what a data set held when it was read, by which a run knows it again.

Four of them, so that a difference has a name: ``shapes``, ``content`` (the inputs), ``labels``
(with the names of the classes) and ``owners`` (with their ids). They are SHA-256 of private data,
of which few may be possible: for the owner of the data, never for a report.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.data.examples import Dataset

_BLOCK_ROWS = 4096  # rows that are copied at a time, where they do not lie side by side


def digests_of(data: Dataset) -> dict[str, str]:
    """The digest of each part of ``data`` by its name; readers may have left some with it."""
    found = dict(data.digests)
    if "content" not in found:
        found["content"] = of_arrays(data.train.images, data.test.images)
    if "owners" not in found:
        found["owners"] = of_arrays(data.owners, data.test_owners)
    found["labels"] = of_arrays(data.train.labels, data.test.labels, data.classes)
    shapes = [data.train.images.shape, data.test.images.shape, data.num_classes]
    found["shapes"] = hashlib.sha256(repr(shapes).encode()).hexdigest()
    return found


def of_arrays(*parts: NDArray[Any] | Sequence[str] | None) -> str:
    """Digest of the values of arrays, whatever their shape, of texts in their order, and of None.

    Returns:
        SHA-256 in hexadecimal.
    """
    state = hashlib.sha256()
    for part in parts:
        if part is None:
            state.update(b"none")
        elif isinstance(part, np.ndarray):
            state.update(f"{part.dtype} {part.size} ".encode())
            for start in range(0, len(part), _BLOCK_ROWS):
                state.update(np.ascontiguousarray(part[start : start + _BLOCK_ROWS]).data)
        else:
            state.update(f"{len(part)} ".encode())
            for text in part:
                state.update(f"{len(text)} {text}".encode(errors="surrogatepass"))
    return state.hexdigest()


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names of the parts that are not what they were, in the order of their names."""
    return sorted(name for name in before if before[name] != now.get(name))
