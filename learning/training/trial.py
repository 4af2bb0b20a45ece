"""A trial of a model before a run: what cannot work is refused with its reason."""

from __future__ import annotations

import math

import torch

from learning.seeding import seeded_torch
from learning.training.trainer import Trainer


def try_out(trainer: Trainer) -> None:
    """One pass forward and back on two made-up images; the model stays as it was.

    Raises:
        ValueError: the model fails, gives something else than logits (2, num_classes) in float32,
            or none of its parameters moves them.
    """
    flat, shape = trainer.flat, (2, *trainer.input_shape)
    kind = type(flat.module).__name__
    images = torch.linspace(0, 1, math.prod(shape)).view(shape).to(flat.vector.device)
    flat.module.eval()
    try:
        with seeded_torch(0), torch.enable_grad():
            logits = flat.module(images)
    except Exception as error:  # whatever a user's own layers raise
        raise ValueError(
            f"model={kind}: fails on images {shape} ({type(error).__name__}: {error})"
        ) from error
    expected = (2, trainer.num_classes)
    if not isinstance(logits, torch.Tensor) or logits.shape != expected:
        found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise ValueError(f"model={kind}: gives {found} for images {shape}, must be {expected}")
    if logits.dtype != torch.float32:
        raise ValueError(f"model={kind}: gives {logits.dtype}, must be float32")
    if not logits.requires_grad:
        raise ValueError(f"model={kind}: its outputs depend on no parameter that trains")
