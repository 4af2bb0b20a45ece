"""Coordinates of images in an unlabelled pool: the slow eigenvectors of its graph of neighbours.

Belkin and Niyogi, "Using manifold structure for partially labelled classification", NIPS 2002: what
varies least along the graph tells its clusters apart. A class that is a cluster or two needs a
dozen numbers instead of hundreds, so that far less noise hides it. An image that is not in the pool
takes the mean of its neighbours' coordinates. Made of public images alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.common import experiment_rng
from murmur.learning.process import one_thread


def coordinates(graph: Any, count: int) -> NDArray[np.float32]:
    """The first ``count`` eigenvectors of S (P, P), standardised: (P, count)."""
    from scipy.sparse.linalg import eigsh

    start = experiment_rng(0, "eigenvectors").standard_normal(graph.shape[0])
    with one_thread():
        values, axes = eigsh(graph, k=count, which="LA", v0=start)
    axes = axes[:, np.argsort(-values, kind="stable")]
    axes = (axes - axes.mean(axis=0)) / np.maximum(axes.std(axis=0), 1e-12)
    return axes.astype(np.float32)


def unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """``rows`` (N, k), each scaled to length 1."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def located(
    rows: NDArray[np.float32],
    pool: NDArray[np.float32],
    places: NDArray[np.float32],
    neighbours: int,
) -> NDArray[np.float32]:
    """Where ``rows`` (N, d) are, (N, k): the mean place of their neighbours, scaled to length 1.

    ``places`` (P, k) are those of ``pool`` (P, d); neighbours are found, and weighed, by cosine.
    """
    with one_thread():
        near = unit(rows) @ unit(pool).T
        count = min(neighbours, len(pool))
        found = np.argpartition(-near, count - 1, axis=1)[:, :count]
        weights = np.maximum(np.take_along_axis(near, found, axis=1), 0)
        return unit(np.einsum("nk,nkd->nd", weights, places[found]).astype(np.float32))
