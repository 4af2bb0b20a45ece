"""The picture of a partition: who holds how much, and of which classes."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray


def partition_picture(counts: NDArray[np.int64], title: str) -> bytes:
    """A PNG: every client's number of examples, above its mixture of classes.

    The mixture is a heat map of each class's share of the client's own examples, so that small
    clients are as readable as large ones: white where the client lacks the class. One hue, so it
    reads without colour vision; the same scale in every picture, so that two can be compared.

    Args:
        counts: examples per client and class, shape (clients, classes).
        title: above the picture.

    Raises:
        ValueError: ``counts`` is not a matrix with a client and a class.
    """
    if counts.ndim != 2 or not counts.size:
        raise ValueError(f"counts={counts.shape}: must have the shape (clients, classes)")
    # Figure without pyplot: no global state, and Agg draws without a display.
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    clients, classes = counts.shape
    sizes = counts.sum(axis=1)
    shares = (counts / np.maximum(sizes, 1)[:, None]).T
    width = float(np.clip(2.5 + 0.14 * clients, 6, 14))
    heat_height = float(np.clip(0.25 * classes, 1, 8))
    figure = Figure(figsize=(width, heat_height + 2.2), dpi=120, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, heat_height])

    # Beyond a hundred clients the gaps between bars would be thinner than a pixel. One outline for
    # all bars: as many artists as clients would take a minute for 10,000.
    half = 0.5
    if clients <= 100:
        half = 0.4
    edges = (np.arange(clients)[:, None] + [-half, half]).ravel()
    heights = np.stack([sizes, np.zeros_like(sizes)], axis=1).ravel()[:-1]
    above.stairs(heights, edges, fill=True, color="#2b5c8a")
    above.set_ylabel("examples")
    above.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    above.spines[["top", "right"]].set_visible(False)
    above.set_title(title, loc="left", fontsize=11)

    # Square-root colours: with ten classes most shares are small, and 0.05 must differ from 0.15.
    mesh = below.pcolormesh(
        np.arange(clients + 1) - 0.5,
        np.arange(classes + 1) - 0.5,
        shares,
        cmap="Blues",
        norm=PowerNorm(0.5, vmin=0, vmax=1),
    )
    below.set_title("class's share of the client's examples", loc="left", fontsize=9)
    below.set_xlabel("client")
    below.set_ylabel("class")
    below.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    below.yaxis.set_major_locator(MaxNLocator(min(classes, 20), integer=True))
    below.invert_yaxis()
    figure.colorbar(mesh, ax=below, pad=0.01, ticks=[0, 0.1, 0.5, 1])
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
