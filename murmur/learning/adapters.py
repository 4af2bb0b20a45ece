"""Low-rank adapters (LoRA) for any model: Hu et al., ICLR 2022, by Hugging Face's peft.

W x  becomes  W x + (α / r) · B A x        W stays frozen; A (r, in) and B (out, r) train
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn


def lora(
    input_shape: tuple[int, int, int],
    num_classes: int,
    *,
    base: Callable[..., nn.Module],
    layers: str,
    trained: Sequence[str],
    rank: int = 4,
    alpha: int = 8,
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
    if min(rank, alpha) < 1:
        raise ValueError(f"rank={rank}, alpha={alpha}: must be at least 1")
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
