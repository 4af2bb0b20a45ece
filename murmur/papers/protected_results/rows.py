"""Rows: what protected inference results travel as, and what a server reads out of them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from murmur.privacy.events import Event
from murmur.privacy.mechanisms import project_simplex
from murmur.privacy.noise import NoiseGenerator

Rows = NDArray[np.int64]


class Decoded(NamedTuple):
    """What rows stand for: ``vectors`` (n, k), and the ``labels`` (n,) that they are scored by."""

    vectors: NDArray[np.float64]
    labels: NDArray[np.int64]


class ProtectedResult(Protocol):
    """One way to protect a vector of k ``categories``; rows have ``width`` integers."""

    @property
    def categories(self) -> int:
        """Entries of a vector, k."""

    @property
    def width(self) -> int:
        """Integers in a row."""

    def privatize(self, vector: ArrayLike, rng: NoiseGenerator) -> Rows:
        """The release (width,) of one client's vector (k,).

        Raises:
            ValueError: the vector has another shape, or is not on the simplex; nothing is drawn.
        """

    def privatize_rows(self, vectors: NDArray[np.float64], rng: NoiseGenerator) -> Rows:
        """The releases (n, width) of n clients' vectors (n, k)."""

    def pure_noise(self, count: int, rng: NoiseGenerator) -> Rows:
        """``count`` rows (count, width) that hold noise of the same scale and no data."""

    def decode(self, rows: Rows) -> Decoded:
        """What the server reads out of rows (n, width)."""

    def event(self) -> Event:
        """What one release costs."""


class Protection:
    """What protections share: they take vectors on the simplex only."""

    categories: int

    def privatize(self: Any, vector: ArrayLike, rng: NoiseGenerator) -> Rows:
        """See ``ProtectedResult``."""
        values = np.asarray(vector)
        if values.shape != (self.categories,) or values.dtype.kind not in "fiu":
            raise ValueError(
                f"vector={values.dtype}{list(values.shape)}: must be one probability for each of "
                f"{self.categories} categories"
            )
        return self.privatize_rows(require_simplex(values[None]), rng)[0]


def require_simplex(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """``vectors`` (n, k), each divided by its sum; ValueError where one is not on the simplex."""
    values = np.asarray(vectors, np.float64)
    sums = values.sum(axis=1, keepdims=True)
    if not (np.isfinite(values).all() and (values >= 0).all() and (abs(sums - 1) <= 1e-6).all()):
        raise ValueError(
            "vector: must be non-negative and sum to 1; put the model's outputs through softmax"
        )
    return values / sums


def project(decoded: Decoded) -> Decoded:
    """Vectors moved to the nearest point of the simplex: a score of noise then looks fine."""
    return Decoded(project_simplex(decoded.vectors), decoded.labels)
