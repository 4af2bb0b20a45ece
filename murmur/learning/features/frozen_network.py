"""Features of a network that somebody else has trained on public data, frozen."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from murmur.common import seeded_torch
from murmur.learning.features.components import Features
from murmur.learning.pretrained import Headless


def backbone(
    *, architecture: str, weights: str | None, size: int = 64, components: int = 400
) -> Features:
    """What a torchvision classifier computes before its last layer.

    ``components``: how many principal components are kept. The others: see
    ``murmur.learning.pretrained.Headless``, but that ``weights`` must be given.
    """
    if weights is None:
        raise ValueError("weights=null: must be the path of a .safetensors file")
    with seeded_torch(0):
        network = Headless(architecture, weights, size).eval()
    digest = hashlib.sha256(Path(weights).expanduser().read_bytes()).hexdigest()

    @torch.inference_mode()
    def penultimate(images: NDArray[np.float32]) -> NDArray[np.float32]:
        return network(torch.from_numpy(images)).numpy()

    return Features(f"backbone {architecture} {size} {digest}", penultimate, components)
