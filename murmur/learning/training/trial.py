"""A trial of a model before a run: what cannot work is refused with its reason.

``try_out`` does what clients will do, on made-up images only: outputs in evaluation mode, a step of
training, outputs again. Before DP-SGD, ``require_separate_examples`` asks beside it that each
example has a gradient of its own, and the right one. Both are asked of the initial model: they need
no data, and no server's parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import Tensor, nn

from murmur.learning.training import dpsgd, losses
from murmur.learning.training.made_up import (
    made_up,
    named,
    same_bits,
    tensors_of,
    train_once,
    unchanged,
)
from murmur.learning.training.precision import require_float32
from murmur.learning.training.trainer import Trainer
from murmur.random import seeded_torch

_REAL = (torch.float32, torch.float64)
CLOSE = (1e-4, 1e-6)
"""Relative and absolute: what floating point may do to the same outputs."""
# What it may do to an example's gradient of a parameter: a share of it, and of the whole gradient.
_RELATIVE = 2e-3
_WHOLE = 1e-5


def try_out(trainer: Trainer) -> None:
    """Evaluation and a step of training on two made-up images; the model stays as it was.

    Raises:
        ValueError: the model fails, gives something else than finite logits (2, num_classes) in
            float32, or none of its parameters moves them; its outputs in evaluation mode are drawn
            at random or change it; a step of training leaves more behind than parameters and
            buffers; or it could not be written to a file.
    """
    kind = type(trainer.flat.module).__name__
    _require_real(trainer, kind)
    images, labels = made_up(trainer, 2)
    with unchanged(trainer) as given:
        _require_logits(trainer, images, kind)
        _require_repeatable(trainer, images, given, kind)
        before = trainer.logits(images)
        if not np.isfinite(before).all():
            raise ValueError(f"model={kind}: gives NaN or infinite values for made-up images")
        start = trainer.flat.vector.clone()
        buffers = trainer.flat.buffers()
        train_once(trainer, images, labels, kind)
        if not torch.isfinite(trainer.flat.vector).all():
            raise ValueError(f"model={kind}: a step of training gives NaN or infinite parameters")
        trainer.flat.vector.copy_(start)
        trainer.flat.load_buffers(buffers)
        if not np.allclose(trainer.logits(images), before, *CLOSE):
            raise ValueError(
                f"model={kind}: a step of training changes what it says with the same parameters "
                "and buffers; what one client leaves behind would reach the next"
            )


def require_separate_examples(trainer: Trainer) -> None:
    """Refuse a model whose examples DP-SGD would protect by gradients that are not their own.

    That is where its outputs depend on the others in its batch, or on chance; where training
    changes more than parameters; and where per-sample gradients differ from autograd's, which are
    taken of one made-up example after the other.

    Raises:
        ValueError: it is such a model; the text names the layer and what to do.
        PrecisionError: this machine rounds float32 products.
    """
    require_float32(trainer.flat.vector.device)
    dpsgd.require_constants(trainer)
    kind = type(trainer.flat.module).__name__
    for layer in trainer.flat.module.modules():
        if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and dpsgd.trained(layer):
            raise ValueError(
                f"model={kind}: DP-SGD has no per-sample gradients for {type(layer).__name__}; "
                "freeze it, or choose another model"
            )
    images, labels = made_up(trainer, 4)
    device = trainer.flat.vector.device
    x = torch.from_numpy(images).to(device)
    y = torch.from_numpy(labels).to(device)
    with unchanged(trainer):
        trainer.load(trainer.initial(np.random.default_rng(0)))
        module = dpsgd.without_dropout(trainer.flat)
        _require_unmixed(module, x, kind)
        gradients = dpsgd.PerSampleGradients(trainer.flat, trainer.objective)
        loss = partial(losses.loss, trainer.objective)
        _require_exact(module, gradients, loss, x[:2], y[:2], kind)


def draws(module: nn.Module, images: Tensor, seed: int) -> tuple[Tensor, bool]:
    """A module's outputs, and whether they are a matter of chance.

    Args:
        module: the model.
        images: (N, C, H, W).
        seed: of PyTorch's generators, which are put back afterwards.

    Returns:
        Outputs, and whether it drew from the generators.
    """
    with seeded_torch(seed), torch.no_grad():
        states = _generators(images.device)
        outputs = module(images)
        drew = any(
            not torch.equal(before, after)
            for before, after in zip(states, _generators(images.device), strict=True)
        )
    return outputs, drew


def _generators(device: torch.device) -> list[Tensor]:
    """The states of PyTorch's generators that a model on ``device`` may draw from."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def _require_real(trainer: Trainer, kind: str) -> None:
    """Refuse tensors that no file of a model holds, and numbers that training lacks.

    Raises:
        ValueError: names the first such tensor.
    """
    for name, parameter in trainer.flat.module.named_parameters():
        odd = parameter.is_complex() or parameter.is_floating_point()
        if odd and parameter.dtype not in _REAL:
            raise ValueError(f"model={kind}: {name} is {parameter.dtype}, must be float32")
    for name, tensor in tensors_of(trainer.flat.module).items():
        try:
            save({name: tensor.flatten()[:1].cpu().numpy()})
        except Exception as error:  # NumPy's and safetensors' own, of several kinds
            raise ValueError(
                f"model={kind}: {name} is {tensor.dtype}, which the run's model.safetensors "
                "cannot hold; use float32"
            ) from error


def _require_logits(trainer: Trainer, images: NDArray[np.float32], kind: str) -> None:
    """Refuse a model that fails, or gives something else than logits that its parameters move.

    Args:
        trainer: of the model.
        images: made up, (N, C, H, W).
        kind: the model's class, for errors.

    Raises:
        ValueError: says what it gives instead.
    """
    flat = trainer.flat
    flat.module.eval()
    try:
        with seeded_torch(0), torch.enable_grad():
            logits = flat.module(torch.from_numpy(images).to(flat.vector.device))
    except Exception as error:  # whatever a user's own layers raise
        where = f"model={kind}: fails on images {images.shape}"
        raise ValueError(f"{where} ({named(error)})") from error
    expected = (len(images), trainer.num_classes)
    if not isinstance(logits, Tensor) or logits.shape != expected:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"model={kind}: gives {found} for images {images.shape}, must be {expected}, "
            "a logit for each class"
        )
    if logits.dtype != torch.float32:
        raise ValueError(f"model={kind}: gives {logits.dtype}, must be float32")
    if not logits.requires_grad:
        raise ValueError(f"model={kind}: its outputs depend on no parameter that trains")


def _require_repeatable(
    trainer: Trainer, images: NDArray[np.float32], given: dict[str, Tensor], kind: str
) -> None:
    """Refuse a model whose evaluation is a matter of chance, or changes the model.

    Args:
        trainer: of the model.
        images: made up, (N, C, H, W).
        given: its tensors as they were.
        kind: the model's class, for errors.

    Raises:
        ValueError: it is such a model.
    """
    module = trainer.flat.module
    x = torch.from_numpy(images).to(trainer.flat.vector.device)
    first, drew = draws(module, x, 0)
    second, _ = draws(module, x, 1)
    if drew or not torch.allclose(first, second, *CLOSE, equal_nan=True):
        raise ValueError(
            f"model={kind}: its outputs are drawn at random in evaluation mode, too; use "
            "nn.Dropout, or dropout(..., training=self.training)"
        )
    for name, tensor in tensors_of(module).items():
        if name not in given or not same_bits(tensor, given[name]):
            raise ValueError(f"model={kind}: evaluation changes {name}")


def _require_unmixed(module: nn.Module, x: Tensor, kind: str) -> None:
    """Refuse a model whose outputs of two examples depend on two others, or on chance.

    Args:
        module: the model, without dropout.
        x: four made-up images.
        kind: the model's class, for errors.

    Raises:
        ValueError: it is such a model.
    """
    one, drew = draws(module, x, 0)
    other, drew_again = draws(module, torch.cat([x[:2], x[:2].flip(0) / 2]), 1)
    if drew or drew_again or not torch.allclose(one[:2], other[:2], 1e-3, 1e-4):
        raise ValueError(
            f"model={kind}: what it says of an example depends on the others in its batch, or is "
            "drawn at random; DP-SGD needs a model without batch normalisation and without "
            "dropout of its own making, such as cnn_groupnorm"
        )


def _require_exact(
    module: nn.Module,
    gradients: dpsgd.PerSampleGradients,
    loss: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    kind: str,
) -> None:
    """Refuse a model whose per-sample gradients are not autograd's, of one example after the other.

    Args:
        module: what the gradients are taken of, without Opacus's hooks.
        gradients: DP-SGD's.
        loss: of outputs and targets.
        x: made-up images (B, C, H, W).
        y: their targets.
        kind: the model's class, for errors.

    Raises:
        ValueError: names the parameter and by how much its gradient is off.
    """
    try:
        samples = gradients.samples(x, y, torch.ones(len(x), 1, device=x.device))
    except ValueError as error:
        raise ValueError(
            f"model={kind}: DP-SGD has no per-sample gradients for {error}; freeze it, or choose "
            "another layer"
        ) from error
    except Exception as error:  # PyTorch's and Opacus's own, of several kinds
        raise ValueError(
            f"model={kind}: DP-SGD has no per-sample gradients for it "
            f"({type(error).__name__}: {error})"
        ) from error
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for row in range(len(x)):
        with torch.enable_grad():
            value = loss(module(x[row : row + 1]), y[row : row + 1])
        found = torch.autograd.grad(value, list(named.values()), materialize_grads=True)
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
