"""The feature maps that ``conf/features`` names: what is computed of each image by itself.

None of them has parameters that private data have moved: the pixels, a fixed network of wavelets
(``wavelets``), and a network that somebody else has trained on public data, frozen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.learning.features.components import Features, Known, Ready


def none() -> None:
    """The images as they are."""


def pca(*, components: int = 50, power: float = 1.0) -> Features:
    """Principal components of the pixels; ``components``: how many are kept."""
    return Features("pca", lambda images: images, components, power)


def scattering(
    *, components: int | None = 400, power: float = 1.0, windows: int | None = None
) -> Features:
    """Principal components of the scattering transform; ``components``: how many are kept.

    ``windows``: into how many overlapping windows a side the transform is averaged; None: as it is.
    """
    from murmur.learning.features.wavelets import scatter

    if windows is None:
        return Features("scattering", scatter, components, power)
    if windows < 1:
        raise ValueError(f"windows={windows}: must be at least 1, or null")

    def averaged(images: NDArray[np.float32]) -> NDArray[np.float32]:
        return _windows(scatter(images), windows)

    return Features(f"scattering {windows}", averaged, components, power)


def _windows(maps: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Means over count² windows (N, C·count²) of ``maps`` (N, C, H, W), which overlap by one."""
    parts = []
    for rows in _cuts(maps.shape[2], count):
        for columns in _cuts(maps.shape[3], count):
            parts.append(maps[:, :, rows, columns].mean(axis=(2, 3)))
    return np.concatenate(parts, axis=1)


def _cuts(size: int, count: int) -> list[slice]:
    width = -(-size // count)
    starts = np.linspace(0, size - width, count).round().astype(int)
    return [slice(start, start + width) for start in starts]


def bins(*, schema: Mapping[str, Any] | None, crossed: Sequence[Sequence[str]] = ()) -> Ready:
    """A table's columns as bins by a public schema (``murmur.learning.features.bins``)."""
    from murmur.learning.features.bins import Bins

    found = Bins(schema or {}, crossed)
    return Ready(f"bins {found.digest}", found, Known(found.digest, found.width))


def backbone(
    *, architecture: str, weights: str | None, size: int = 64, components: int = 400
) -> Features:
    """What a torchvision classifier computes before its last layer.

    Args:
        architecture: torchvision's name of it.
        weights: path of a .safetensors file with its parameters.
        size: pixels of a side to which images are resized.
        components: how many principal components are kept.

    Raises:
        ValueError: no weights are named, or they are not those of the architecture
            (``murmur.learning.pretrained.Headless``).
    """
    if weights is None:
        raise ValueError("weights=null: must be the path of a .safetensors file")
    import torch

    from murmur.common import seeded_torch
    from murmur.learning.pretrained import Headless

    with seeded_torch(0):
        network = Headless(architecture, weights, size).eval()
    digest = hashlib.sha256(Path(weights).expanduser().read_bytes()).hexdigest()

    @torch.inference_mode()
    def penultimate(images: NDArray[np.float32]) -> NDArray[np.float32]:
        return network(torch.from_numpy(images)).numpy()

    return Features(f"backbone {architecture} {size} {digest}", penultimate, components)
