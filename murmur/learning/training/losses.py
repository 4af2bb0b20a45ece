"""Losses of the tasks (``murmur.learning.objective``), as training reads them."""

import torch
from torch import Tensor
from torch.nn import functional

from murmur.learning.objective import Objective


def residuals(objective: Objective, outputs: Tensor, targets: Tensor) -> Tensor:
    """The gradient (B, outputs) of each example's loss by the model's outputs.

    Args:
        objective: the task.
        outputs: of the model, detached, (B, outputs).
        targets: (B, outputs).
    """
    if objective.kind == "regression":
        return outputs - targets
    if objective.kind == "multilabel":
        return torch.sigmoid(outputs).sub_(targets)
    return torch.softmax(outputs, dim=1).sub_(targets)


def loss(objective: Objective, outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of examples, for autograd; arguments as of ``residuals``."""
    if objective.kind == "regression":
        return (outputs - targets).square().sum() / (2 * len(outputs))
    if objective.kind == "multilabel":
        whole = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="sum")
        return whole / len(outputs)
    return functional.cross_entropy(outputs, targets)
