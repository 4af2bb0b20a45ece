"""Initial parameters drawn from a NumPy generator, never from PyTorch's global one."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

SCHEMES = ("torch", "glorot", "zeros")
_NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


def check_scheme(scheme: str) -> None:
    """Raise ValueError unless ``scheme`` is one of ``SCHEMES``."""
    if scheme not in SCHEMES:
        raise ValueError(f"init={scheme!r}: must be one of {', '.join(SCHEMES)}")


@torch.no_grad()
def initialise(module: nn.Module, rng: np.random.Generator, scheme: str = "torch") -> None:
    """Overwrite every parameter of ``module``, in the order of ``module.modules()``.

    Schemes, for linear layers and convolutions:

    * ``torch``: weight and bias uniform in ±1/sqrt(fan_in), PyTorch's own default (Kaiming uniform
      with a = sqrt(5)).
    * ``glorot``: weight uniform in ±sqrt(6 / (fan_in + fan_out)) (Glorot & Bengio, AISTATS 2010),
      bias 0, the default of Keras.
    * ``zeros``: weight and bias 0, which suits a single linear layer only.

    Normalisation layers get weight 1, bias 0 and fresh statistics. A module of another kind with
    parameters of its own must have a method ``initialise(rng)`` that overwrites those. A module
    whose own parameters are frozen keeps them.

    Raises:
        ValueError: a module has parameters and no rule.
    """
    check_scheme(scheme)
    for child in module.modules():
        own = list(child.parameters(recurse=False))
        if own and not any(parameter.requires_grad for parameter in own):
            continue
        own_rule = getattr(child, "initialise", None)
        if callable(own_rule):
            own_rule(rng)
        elif isinstance(child, nn.Linear | nn.Conv2d):
            _initialise_affine(child, rng, scheme)
        elif isinstance(child, _NORMALISATIONS):
            child.reset_parameters()
        elif own:
            raise ValueError(
                f"model={type(child).__name__}: has parameters and no known initialisation; "
                "give it a method initialise(rng)"
            )


def _initialise_affine(layer: nn.Linear | nn.Conv2d, rng: np.random.Generator, scheme: str) -> None:
    shape = tuple(layer.weight.shape)
    taps = math.prod(shape[2:])
    fan_in, fan_out = shape[1] * taps, shape[0] * taps
    bounds = {"torch": 1 / math.sqrt(fan_in), "glorot": math.sqrt(6 / (fan_in + fan_out))}
    bound = bounds.get(scheme, 0.0)
    layer.weight.copy_(_uniform(rng, shape, bound))
    if layer.bias is not None:
        bias_bound = bound if scheme == "torch" else 0.0
        layer.bias.copy_(_uniform(rng, tuple(layer.bias.shape), bias_bound))


def _uniform(rng: np.random.Generator, shape: tuple[int, ...], bound: float) -> torch.Tensor:
    drawn = rng.random(shape, dtype=np.float32)
    return torch.from_numpy(drawn).mul_(2 * bound).sub_(bound)
