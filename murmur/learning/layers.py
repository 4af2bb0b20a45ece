"""Layers that PyTorch lacks, and how layers of either kind are drawn.

Dropout with a stream of its own, a flatten that copies nothing and quick pooling; and the initial
parameters of a model as a function of a NumPy generator, never of PyTorch's global one.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

SCHEMES = ("torch", "glorot", "zeros")
"""How linear layers and convolutions can be drawn; see ``initialise``."""

_LEVELS = 2**16
_NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


class Dropout(nn.Module):
    """Inverted dropout (Srivastava et al., JMLR 2014) that never touches a global generator.

    Set ``bits`` before training; ``Trainer`` does so in every call. A unit is kept
    when 16 fresh random bits are below ``round((1 - p) * 2**16)``, and kept units are scaled by
    exactly the inverse of that probability, so that expectations are exact whatever ``p`` is.
    Drawing 16 bits takes a tenth of the time of PyTorch's Bernoulli draws.

    Args:
        p: probability that a unit is dropped, in [0, 1).

    Attributes:
        bits: 64-bit generator of the masks.

    Raises:
        ValueError: ``p`` is outside its range.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout={p}: must be at least 0 and below 1")
        self.p = p
        self._threshold = max(1, round((1 - p) * _LEVELS))
        self._scale = _LEVELS / self._threshold
        self.bits: np.random.SFC64 | None = None

    def draw(self, out: Tensor) -> Tensor:
        """Fill ``out`` (float32, contiguous): 0 for dropped units, the scale for kept ones."""
        if self.bits is None:
            raise RuntimeError("Dropout.bits is not set: dropout in training needs a generator")
        drawn = self.bits.random_raw(-(-out.numel() // 4)).view(np.uint16)[: out.numel()]
        kept = (drawn < self._threshold).reshape(out.shape)
        if out.is_cpu:
            np.multiply(kept, np.float32(self._scale), out=out.numpy())
            return out
        return out.copy_(torch.from_numpy(kept)).mul_(self._scale)

    def forward(self, x: Tensor) -> Tensor:
        """Drop units of ``x`` in training mode; return it unchanged otherwise."""
        if not self.training or self.p == 0:
            return x
        # Drawn in memory order, so that the mask does not depend on who runs the layer.
        if x.dim() != 4:
            return x * self.draw(torch.empty(x.shape, device=x.device))
        batch, channels, height, width = x.shape
        mask = self.draw(torch.empty(batch, height, width, channels, device=x.device))
        return x * mask.permute(0, 3, 1, 2)

    def extra_repr(self) -> str:
        """The drop probability, for ``repr``."""
        return f"p={self.p}"


class HalvingPool(nn.MaxPool2d):
    """Maximum over 2×2 windows; without a gradient to come, by comparing neighbours.

    PyTorch's kernel computes the place of every maximum, too, which takes four times as long.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C, H // 2, W // 2)."""
        if torch.is_grad_enabled():
            return super().forward(x)
        height = x.shape[2] // 2 * 2
        width = x.shape[3] // 2 * 2
        x = x[:, :, :height, :width].permute(0, 2, 3, 1)  # channels-last, as activations are kept
        rows = torch.maximum(x[:, :, 0::2], x[:, :, 1::2])
        return torch.maximum(rows[:, 0::2], rows[:, 1::2]).permute(0, 3, 1, 2)


class Flatten(nn.Module):
    """(N, C, H, W) to (N, H*W*C), channels fastest, as TensorFlow orders it.

    Activations are kept channels-last, so this order is a view where PyTorch's (channels slowest)
    would be a copy in either direction. For one channel the two orders are the same.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the flattened view."""
        return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1)


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
    outputs, inputs, *kernel = layer.weight.shape
    fan_in = inputs * math.prod(kernel)
    fan_out = outputs * math.prod(kernel)
    torch_bound = 1 / math.sqrt(fan_in)
    glorot_bound = math.sqrt(6 / (fan_in + fan_out))
    # Of weight and bias.
    bounds = {"torch": (torch_bound, torch_bound), "glorot": (glorot_bound, 0), "zeros": (0, 0)}
    for parameter, bound in zip((layer.weight, layer.bias), bounds[scheme], strict=True):
        if parameter is not None:
            parameter.copy_(_uniform(rng, tuple(parameter.shape), bound))


def _uniform(rng: np.random.Generator, shape: tuple[int, ...], bound: float) -> torch.Tensor:
    drawn = rng.random(shape, dtype=np.float32)
    return torch.from_numpy(drawn).mul_(2 * bound).sub_(bound)
