"""Clipping, rounding and summing of per-sample gradients, by installed kernels or by PyTorch.

Both give the same bits (``process.KERNELS``, packages/murmur-kernels).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from murmur.learning.process import has_compiler, kernels

# A float32 norm of so many entries is off by less than their number times 2⁻²⁴, in whatever order.
_COLUMNS = 1 << 12
_SAFE = 1 - (_COLUMNS + 16) * 2.0**-24


class Products(NamedTuple):
    """Per-sample gradients of a linear layer's weight, unmade: each the product of two vectors.

    Attributes:
        residuals: gradients of the layer's outputs, (B, outputs).
        inputs: the layer's, (B, inputs).
    """

    residuals: Tensor
    inputs: Tensor


Gradients = Tensor | Products
"""Per-sample gradients of one parameter, (B, entries) where they are made."""


def made(gradients: Gradients) -> Tensor:
    """The gradients in memory, (B, entries)."""
    if isinstance(gradients, Products):
        return (gradients.residuals[:, :, None] * gradients.inputs[:, None]).flatten(1)
    return gradients


class ClippedSums:
    """Factors and sums of per-sample gradients.

    Args:
        device: of the gradients; kernels are for processors.

    Attributes:
        kernels: the installed ones, or None. With them gradients may be ``Products``.
    """

    def __init__(self, device: torch.device) -> None:
        self.kernels: Any = None
        if device.type == "cpu" and has_compiler():
            installed = kernels("clipping")
            self.kernels = installed and installed.clipping(_COLUMNS)

    def factors(self, gradients: list[Gradients], norm: float, steps: int) -> Tensor:
        """Factors (B, 1) for each example's gradient; one that is not finite becomes 0.

        Args:
            gradients: of all parameters.
            norm: the clipping norm.
            steps: what ``norm`` becomes; a longer gradient is never longer than that.
        """
        norms = torch.cat([self._norms(gradient) for gradient in gradients]).double()
        lengths = torch.linalg.vector_norm(norms, dim=0)
        broken = ~torch.isfinite(lengths)
        if broken.any():
            for gradient in gradients:
                for part in gradient if isinstance(gradient, Products) else (gradient,):
                    part[broken] = 0
            lengths[broken] = 0
        return (steps * _SAFE / lengths.clamp_(min=norm)).float()[:, None]

    def add(self, gradients: Gradients, factors: Tensor, total: Tensor) -> None:
        """Add gradients, multiplied and then rounded towards zero, to ``total``, which is 0.

        Args:
            gradients: of one parameter; may be overwritten.
            factors: (B, 1).
            total: of the parameter's shape; 64 examples of at most 2¹⁸ are exact in float32.

        Raises:
            RuntimeError: the gradients are of another size, since their layer's rows are not the
                batch's examples.
        """
        if isinstance(gradients, Products):
            shape = (gradients.residuals.shape[1], gradients.inputs.shape[1])
            self.kernels.add_products(*gradients, factors, total.view(shape))
        elif self.kernels is not None and gradients.dtype == total.dtype:
            self.kernels.add_rows(gradients, factors, total.view(gradients.shape[1]))
        else:
            steps = gradients.mul_(factors).trunc_()
            total.copy_(steps.sum(dim=0).view(total.shape))

    def _norms(self, gradients: Gradients) -> Tensor:
        """Norms of the parts of ``_COLUMNS`` entries, (parts, B)."""
        if isinstance(gradients, Products):
            norms: Tensor = self.kernels.norms(*gradients)
            return norms
        parts = gradients.split(_COLUMNS, dim=1)
        return torch.stack([torch.linalg.vector_norm(part, dim=1) for part in parts])
