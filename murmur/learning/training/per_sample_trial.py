"""A trial of a model before DP-SGD: each example has a gradient of its own, and the right one.

Asked of the initial model, before a run: it needs no data, and no server's parameters.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from murmur.learning.kernels.per_sample import PerSampleGradients, trained, without_dropout
from murmur.learning.training.trainer import Trainer
from murmur.learning.training.trial import draws, made_up

# What floating point may do to a parameter's gradient: a share of it, and of the whole gradient.
_RELATIVE, _WHOLE = 2e-3, 1e-5


def require_separate_examples(trainer: Trainer) -> None:
    """ValueError where DP-SGD would protect an example by a gradient that is not its own.

    That is where its outputs depend on the others in its batch, or on chance; where training
    changes more than parameters; and where per-sample gradients differ from autograd's, which are
    taken of one made-up example after the other.
    """
    require_constants(trainer)
    kind = type(trainer.flat.module).__name__
    module = without_dropout(trainer.flat)
    for layer in module.modules():
        if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and trained(layer):
            raise ValueError(
                f"model={kind}: DP-SGD has no per-sample gradients for {type(layer).__name__}; "
                "freeze it, or choose another model"
            )
    initial = torch.from_numpy(trainer.initial(np.random.default_rng(0)))
    present = trainer.parameters()
    images, labels = made_up(trainer, 4)
    device = trainer.flat.vector.device
    x, y = torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device)
    with torch.no_grad():
        for name, view in trainer.flat.views(initial).items():
            module.get_parameter(name).data = view.to(device, copy=True)
    _require_unmixed(module, x, kind)
    trainer.load(initial.numpy())
    try:
        _require_exact(module, PerSampleGradients(trainer.flat), x[:2], y[:2], kind)
    finally:
        trainer.load(present)


def require_constants(trainer: Trainer) -> None:
    """ValueError where training changes a buffer, which no clipping and no noise reaches."""
    if trainer.statistics:
        kind = type(trainer.flat.module).__name__
        raise ValueError(
            f"model={kind}: keeps statistics over batches, in which examples mix (training changes "
            f"its buffer {trainer.statistics[0]}); DP-SGD needs a model without batch "
            "normalisation, such as cnn_groupnorm"
        )


def _require_unmixed(module: nn.Module, x: Tensor, kind: str) -> None:
    outputs, drawn = [], []
    for seed, rest in enumerate((x[2:], x[:2].flip(0) / 2)):
        said, drew = draws(module, torch.cat([x[:2], rest]), seed)
        outputs.append(said[:2])
        drawn.append(drew)
    if any(drawn) or not torch.allclose(outputs[0], outputs[1], 1e-3, 1e-4):
        raise ValueError(
            f"model={kind}: what it says of an example depends on the others in its batch, or is "
            "drawn at random; DP-SGD needs a model without batch normalisation and without "
            "dropout of its own making, such as cnn_groupnorm"
        )


def _require_exact(
    module: nn.Module, gradients: PerSampleGradients, x: Tensor, y: Tensor, kind: str
) -> None:
    """``module``: what ``gradients`` differentiates, without hooks."""
    try:
        samples = gradients.samples(x, y, torch.ones(len(x), 1, device=x.device))
    except Exception as error:  # PyTorch's and Opacus's own, of several kinds
        raise ValueError(
            f"model={kind}: DP-SGD has no per-sample gradients for it "
            f"({type(error).__name__}: {error})"
        ) from error
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for row in range(len(x)):
        with torch.enable_grad():
            loss = nn.functional.cross_entropy(module(x[row : row + 1]), y[row : row + 1])
        found = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
        whole = torch.stack([gradient.norm() for gradient in found]).norm()
        for name, gradient in zip(named, found, strict=True):
            away = (samples[name][row] - gradient.flatten()).norm()
            if not away <= _RELATIVE * gradient.norm() + _WHOLE * whole:
                layer = module.get_submodule(name.rpartition(".")[0])
                raise ValueError(
                    f"model={kind}: DP-SGD has no exact per-sample gradient for {name} of {layer} "
                    f"(relative error {away / gradient.norm():.2g} on a made-up example); freeze "
                    "it, or choose another layer"
                )
