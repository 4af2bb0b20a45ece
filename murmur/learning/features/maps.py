"""The feature maps that ``conf/features`` names: what is computed of each image by itself.

None of them has parameters that private data have moved: the pixels, a fixed network of wavelets
(``wavelets``), and a network that somebody else has trained on public data, frozen.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from murmur.learning.features.components import Features


def none() -> None:
    """The images as they are."""


def pca(*, components: int = 50) -> Features:
    """Principal components of the pixels; ``components``: how many are kept."""
    return Features("pca", lambda images: images, components)


def scattering(*, components: int = 400) -> Features:
    """Principal components of the scattering transform; ``components``: how many are kept."""
    from murmur.learning.features.wavelets import scatter

    return Features("scattering", scatter, components)


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
