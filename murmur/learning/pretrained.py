"""Networks that somebody else has trained: torchvision's, with a new last layer."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional

InputShape = tuple[int, int, int]

# The mean and deviation of ImageNet's pixels, on which such networks are trained.
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Headless(nn.Module):
    """A torchvision classifier up to its last layer, and what its images must look like.

    Args:
        architecture: the name of a model of ``torchvision.models`` whose last layer is linear.
        weights: its parameters as a .safetensors file, under torchvision's names; those of the
            last layer are not used. None: as torchvision draws them.
        size: side in pixels to which images are scaled; grey images are repeated in three colours.

    Attributes:
        width: number of features.

    Raises:
        ValueError: there is no such model, or the file is missing or not that model's.
    """

    def __init__(self, architecture: str, weights: str | None, size: int) -> None:
        super().__init__()
        import torchvision

        if size < 1:
            raise ValueError(f"size={size}: must be at least 1")
        if architecture not in torchvision.models.list_models(torchvision.models):
            raise ValueError(f"architecture={architecture}: is not a model of torchvision.models")
        self.network = torchvision.models.get_model(architecture, weights=None)
        self.size = size
        name, head = list(self.network.named_modules())[-1]
        if not isinstance(head, nn.Linear):
            raise ValueError(f"architecture={architecture}: its last layer must be a linear one")
        if weights is not None:
            _load(self.network, architecture, weights, name)
        self.width = head.in_features
        owner, _, own_name = name.rpartition(".")
        setattr(self.network.get_submodule(owner), own_name, nn.Identity())

    def forward(self, images: Tensor) -> Tensor:
        """Features (N, width) of images (N, 1 or 3, H, W) in [0, 1]."""
        images = images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images
        scaled = functional.interpolate(images, (self.size, self.size), mode="bilinear")
        mean, deviation = scaled.new_tensor(_MEAN), scaled.new_tensor(_DEVIATION)
        return self.network((scaled - mean[:, None, None]) / deviation[:, None, None])


class Pretrained(nn.Module):
    """``body``, a ``Headless`` network, and ``head``, a new linear layer."""

    def __init__(self, body: Headless, num_classes: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(body.width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, num_classes)."""
        return self.head(self.body(images))


def torchvision_model(
    input_shape: InputShape,
    num_classes: int,
    *,
    architecture: str,
    weights: str | None,
    size: int = 64,
    frozen: bool = True,
) -> Pretrained:
    """A torchvision classifier with a new last layer, for ``conf/model``.

    ``frozen``: only the last layer trains. Otherwise all parameters do; the statistics of batch
    normalisation stay those of the file either way, since examples of one client mix in them. The
    other settings are those of ``Headless``.
    """
    if input_shape[0] not in (1, 3):
        raise ValueError(f"input_shape={tuple(input_shape)}: must be images of 1 or 3 channels")
    body = Headless(architecture, weights, size)
    body.eval().requires_grad_(not frozen)
    return Pretrained(body, num_classes)


def _load(network: nn.Module, architecture: str, weights: str, head: str) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    own = {name: v for name, v in network.state_dict().items() if name.startswith(f"{head}.")}
    try:
        given = load_file(Path(weights).expanduser())
        network.load_state_dict(given | own)
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"weights={weights}: cannot be read as {architecture} ({reason})"
        ) from error
