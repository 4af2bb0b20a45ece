"""The picture of a partition: who holds how much, and of which classes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def partition_picture(counts: NDArray[np.int64], path: str | Path, title: str) -> None:
    """Writes a PNG: every client's number of examples, above its mixture of classes.

    The mixture is a heat map of each class's share of the client's own examples, so that small
    clients are as readable as large ones. One colour scale for every picture, of one hue and
    rising lightness (matplotlib's ``cividis``, made for colour-blind readers).

    Args:
        counts: examples per client and class, shape (clients, classes).
        path: where to write; an existing file is replaced, and never left half-written.
        title: above the picture.

    Raises:
        ValueError: ``counts`` is not a matrix with a client and a class.
        OSError: ``path`` cannot be written.
    """
    if counts.ndim != 2 or not counts.size:
        raise ValueError(f"counts={counts.shape}: must have the shape (clients, classes)")
    # Figure without pyplot: no global state, and Agg draws without a display.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    clients, classes = counts.shape
    sizes = counts.sum(axis=1)
    shares = (counts / np.maximum(sizes, 1)[:, None]).T
    width = float(np.clip(2.5 + 0.14 * clients, 6, 14))
    height = float(np.clip(2.2 + 0.24 * classes, 3.6, 9))
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 0.5 + 0.16 * classes])

    edges = np.arange(clients + 1) - 0.5
    above.stairs(sizes, edges, fill=True, color="#31446b")
    above.set_ylim(bottom=0)
    above.set_ylabel("examples")
    above.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    above.spines[["top", "right"]].set_visible(False)
    above.set_title(title, loc="left", fontsize=11)

    mesh = below.pcolormesh(
        edges, np.arange(classes + 1) - 0.5, shares, cmap="cividis", vmin=0, vmax=1
    )
    below.set_xlabel("client")
    below.set_ylabel("class")
    below.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    below.yaxis.set_major_locator(MaxNLocator(min(classes, 20), integer=True))
    below.invert_yaxis()
    figure.colorbar(mesh, ax=below, label="share of the client's", pad=0.01)
    _save(figure, Path(path))


def _save(figure: Figure, path: Path) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            figure.savefig(file, format="png")
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
