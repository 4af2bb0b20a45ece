"""Features of a network that somebody else has trained on public data, frozen."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from learning.features.components import Features


def backbone(
    *, architecture: str, weights: str | None, size: int = 64, components: int = 400
) -> Features:
    """What a torchvision classifier computes before its last layer.

    Args:
        architecture: the name of a model of ``torchvision.models`` whose last layer is ``fc``.
        weights: its parameters as a .safetensors file, under torchvision's names.
        size: side in pixels to which images are scaled; grey images are repeated in three colours.
        components: how many principal components are kept.

    Raises:
        ValueError: there is no such model, or the file is missing or not that model's.
    """
    import torchvision
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if weights is None:
        raise ValueError("weights=null: must be the path of a .safetensors file")
    if size < 1:
        raise ValueError(f"size={size}: must be at least 1")
    if architecture not in torchvision.models.list_models(torchvision.models):
        raise ValueError(f"architecture={architecture}: is not a model of torchvision.models")
    path = Path(weights).expanduser()
    with torch.random.fork_rng(devices=[]):
        network = torchvision.models.get_model(architecture, weights=None)
    head = getattr(network, "fc", None)
    if not isinstance(head, torch.nn.Linear):
        raise ValueError(f"architecture={architecture}: its last layer must be a linear one, fc")
    try:
        parameters = {k: v for k, v in load_file(path).items() if not k.startswith("fc.")}
        own = {f"fc.{name}": value for name, value in head.state_dict().items()}
        network.load_state_dict(parameters | own)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"weights={weights}: cannot be read as {architecture} ({reason})"
        ) from error
    network.fc = torch.nn.Identity()
    network.eval()

    @torch.inference_mode()
    def penultimate(images: NDArray[np.float32]) -> NDArray[np.float32]:
        batch = torch.from_numpy(images)
        batch = batch.expand(-1, 3, -1, -1) if batch.shape[1] == 1 else batch
        scaled = torch.nn.functional.interpolate(batch, (size, size), mode="bilinear")
        # The mean and deviation of ImageNet's pixels, on which such networks are trained.
        mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        return network((scaled - mean[:, None, None]) / deviation[:, None, None]).numpy()

    return Features(f"backbone {architecture} {size} {digest}", penultimate, components)
