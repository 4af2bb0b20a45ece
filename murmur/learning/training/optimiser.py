"""Steps over a flat parameter vector, in place and without allocation per step."""

import math
from typing import Literal

import torch
from torch import Tensor

from murmur.settings import NotNegative, Positive, settings


@settings
class Optimisation:
    """How parameters w follow the gradient g of the mean loss over a batch.

    The objective is loss + (proximal_mu / 2)·‖w − anchor‖².

    Attributes:
        lr: learning rate, finite and above 0.
        optimizer: ``sgd``, or ``adam`` (Kingma & Ba, ICLR 2015).
        betas: for Adam, the decay of its two moments, each in [0, 1).
        proximal_mu: pull towards the anchor (FedProx, Li et al., MLSys 2020), at least 0.

    Raises:
        ValueError: a setting is outside its range.
    """

    lr: Positive
    optimizer: Literal["sgd", "adam"] = "sgd"
    betas: tuple[float, float] = (0.9, 0.999)
    proximal_mu: NotNegative = 0.0

    def __post_init__(self) -> None:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={self.betas}: must be two numbers, at least 0 and below 1")

    @property
    def pull(self) -> float:
        """The share of the anchor in a step of SGD, w ← weight_factor·w + pull·anchor − lr·g."""
        return self.lr * self.proximal_mu

    @property
    def weight_factor(self) -> float:
        """The share of the old parameters in a step of SGD."""
        return 1 - self.pull


class Adam:
    """The moments of Adam for a vector ``like`` this one, from zero on."""

    def __init__(self, like: Tensor) -> None:
        self._first, self._second, self._scratch = like.new_zeros(3, len(like)).unbind()
        self._steps = 0

    def step(self, vector: Tensor, gradient: Tensor, anchor: Tensor, how: Optimisation) -> None:
        """Move ``vector`` in place; ``gradient`` is overwritten.

        Args:
            vector: (d,), the parameters.
            gradient: (d,), of the mean loss over a batch.
            anchor: (d,), read where ``how`` has a proximal term.
            how: the rates.
        """
        self._steps += 1
        if how.proximal_mu:
            gradient.add_(vector, alpha=how.proximal_mu).sub_(anchor, alpha=how.proximal_mu)
        beta1, beta2 = how.betas
        self._first.mul_(beta1).add_(gradient, alpha=1 - beta1)
        self._second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        torch.sqrt(self._second, out=self._scratch)
        self._scratch.div_(math.sqrt(1 - beta2**self._steps)).add_(1e-8)
        vector.addcdiv_(self._first, self._scratch, value=-how.lr / (1 - beta1**self._steps))
