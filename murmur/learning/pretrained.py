"""Networks that somebody else has trained: torchvision's, and low-rank adapters for any model.

Both are for ``conf/model``, and both train a few of a network's parameters: a new last layer, and
beside frozen layers what Hu et al., ICLR 2022 (LoRA), add to them, by Hugging Face's peft:

    W x  becomes  W x + (α / r) · B A x        W stays frozen; A (r, in) and B (out, r) train

torchvision and peft are imported where they are used: few runs need either.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from murmur.settings import Count

InputShape = tuple[int, int, int]

# The mean and deviation of ImageNet's pixels, on which such networks are trained.
_MEAN = (0.485, 0.456, 0.406)
_DEVIATION = (0.229, 0.224, 0.225)


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
        if images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        scaled = nn.functional.interpolate(images, (self.size, self.size), mode="bilinear")
        mean, deviation = scaled.new_tensor(_MEAN), scaled.new_tensor(_DEVIATION)
        return self.network((scaled - mean[:, None, None]) / deviation[:, None, None])


class Pretrained(nn.Module):
    """``body``, a ``Headless`` network, and ``head``, a new linear layer."""

    def __init__(self, body: Headless, num_classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(body.width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, num_classes)."""
        return self.head(self.body(images))


def torchvision_model(
    input_shape: InputShape,
    num_classes: int,
    *,
    architecture: str,
    weights: str | None,
    size: Annotated[int, Field(ge=1, le=4_096)] = 64,
    frozen: bool = True,
) -> Pretrained:
    """A torchvision classifier with a new last layer.

    The statistics of batch normalisation stay those of the file, since examples of one client mix
    in them.

    Args:
        input_shape: (1 or 3, height, width); images are scaled to ``size``.
        num_classes: number of logits.
        architecture: see ``Headless``, as for ``weights`` and ``size``.
        weights: None for a network as torchvision draws it.
        size: side in pixels to which images are scaled.
        frozen: whether only the last layer trains; otherwise all parameters do.

    Raises:
        ValueError: images have other channels, or ``Headless`` refuses a setting.
    """
    if input_shape[0] not in (1, 3):
        raise ValueError(f"input_shape={tuple(input_shape)}: must be images of 1 or 3 channels")
    body = Headless(architecture, weights, size)
    body.eval().requires_grad_(not frozen)
    return Pretrained(body, num_classes)


def lora(
    input_shape: tuple[int, int, int],
    num_classes: int,
    *,
    base: Callable[..., nn.Module],
    layers: str,
    trained: Sequence[str],
    rank: Count = 4,
    alpha: Count = 8,
) -> nn.Module:
    """The model of ``base`` of which adapters train, and the submodules named in ``trained``.

    Args:
        input_shape: (channels, height, width).
        num_classes: number of logits.
        base: makes the model.
        layers: regular expression for the whole names of the layers that get an adapter: linear
            layers and convolutions.
        trained: names of submodules that train as they are, such as a new last layer.
        rank: r.
        alpha: α.

    Raises:
        ValueError: peft is not installed, no layer is named so, or a setting is out of range.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ValueError(
            "layers: adapters need the package peft; install it (extra `lora`)"
        ) from error
    model = base(input_shape=input_shape, num_classes=num_classes)
    known = dict(model.named_modules())
    for name in trained:
        if name not in known:
            raise ValueError(f"trained={name}: is no part of {type(model).__name__}")
    try:
        inject_adapter_in_model(
            LoraConfig(r=rank, lora_alpha=alpha, target_modules=layers), model, "lora"
        )
    except ValueError as error:
        raise ValueError(f"layers={layers}: {str(error).splitlines()[0]}") from error
    for name in trained:
        model.get_submodule(name).requires_grad_(True)
    return model


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
