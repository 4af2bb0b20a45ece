"""A model whose parameters are views into one flat vector.

Federated learning treats a model as a vector: it is clipped, noised, averaged and sent as one. Here
it is stored as one, too: loading is one copy, an optimiser's step a handful of operations over the
whole vector.

**Order.** Parameters follow ``module.named_parameters()``; within each, the order is that of the
layout computed fastest, and it is the public order of the vector:

* ``Conv2d.weight``: (out, height, width, in), that is channels-last;
* ``Linear.weight``: (in, out), so that weight and bias together are one matrix with the bias as its
  last row;
* anything else: PyTorch's own order.

Everything that only needs a vector (norms, noise, averages) can ignore this. ``state_dict`` and
``flatten`` translate to and from PyTorch's names and shapes.

**Frozen parameters** (``requires_grad=False``) are no part of the vector: they stay as they were
given, so that they are neither trained, clipped, noised nor sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from murmur.learning.training.memory import as_tensor


class FlatModel:
    """``module`` with the parameters that train rebound to views into ``vector``.

    Args:
        module: its present parameters become the content of ``vector``. Those that train must be
            float32. Submodules that are given in evaluation mode, or whose parameters are all
            frozen, stay in evaluation mode: their normalisation keeps the statistics it has.
        device: where the vector lives.

    Attributes:
        module: the module given, on ``device``.
        vector: float32 (d,), the parameters.

    Raises:
        ValueError: the module has no parameters that train, or one that is not float32.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        kind = type(module).__name__
        if not parameters:
            raise ValueError(f"model={kind}: has no parameters to train")
        for name, parameter in parameters.items():
            if parameter.dtype != torch.float32:
                raise ValueError(f"model={kind}: {name} is {parameter.dtype}, must be float32")
        self.module = module.to(device)
        self.vector = torch.empty(sum(p.numel() for p in parameters.values()), device=device)
        self._orders = {name: _order(module, name) for name in parameters}
        self._shapes = {name: tuple(p.shape) for name, p in parameters.items()}
        self._gradient: Tensor | None = None
        resting = {name: part for name, part in module.named_modules() if _rests(part)}
        self._resting = list(resting)
        kept = {id(buffer) for part in resting.values() for buffer in part.buffers()}
        self._frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
        self._frozen |= {name for name, b in module.named_buffers() if id(b) in kept}
        floating = [b for b in module.buffers() if b.is_floating_point()]
        self._buffers = [b for b in floating if id(b) not in kept]
        self.num_parameters = self.vector.numel()
        self.num_buffers = sum(b.numel() for b in self._buffers)
        for name, view in self.views(self.vector).items():
            parameter = module.get_parameter(name)
            view.copy_(parameter.detach())
            parameter.data = view

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Views into ``vector`` (d,) under PyTorch's names and shapes, without a copy."""
        result, start = {}, 0
        for name, shape in self._shapes.items():
            order = self._orders[name]
            stored = [shape[axis] for axis in order]
            stop = start + math.prod(shape)
            inverse = [order.index(axis) for axis in range(len(order))]
            result[name] = vector[start:stop].view(stored).permute(inverse)
            start = stop
        return result

    def train(self, module: nn.Module | None = None) -> None:
        """Put the module, or a copy of it, in training mode, but for what rests."""
        module = self.module if module is None else module
        module.train()
        for name in self._resting:
            module.get_submodule(name).training = False

    @property
    def gradient(self) -> Tensor:
        """float32 (d,): the accumulated gradient, laid out as ``vector``. Made on first use."""
        if self._gradient is None:
            self._gradient = torch.zeros_like(self.vector)
            for name, view in self.views(self._gradient).items():
                self.module.get_parameter(name).grad = view
        return self._gradient

    def state_dict(self, vector: NDArray[np.float32] | None = None) -> dict[str, Tensor]:
        """Contiguous copies of the parameters, named and shaped as PyTorch does, on the CPU.

        Args:
            vector: (d,) in this class's order; the present parameters where it is None.

        Returns:
            All parameters, frozen ones too, and the module's present buffers.
        """
        source = self.vector if vector is None else torch.tensor(self._checked(vector))
        named = {name: p.detach() for name, p in self.module.named_parameters()}
        named |= {name: view.detach() for name, view in self.views(source).items()}
        named |= dict(self.module.named_buffers())
        return {
            name: tensor.cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in named.items()
        }

    def flatten(self, state_dict: Mapping[str, Tensor]) -> NDArray[np.float32]:
        """The inverse of ``state_dict``: (d,) float32. Statistics of training are ignored.

        Raises:
            ValueError: a parameter is missing, unknown or of another shape, or one that is frozen
                here has other values there.
        """
        present = self.state_dict()
        if unknown := set(state_dict) - set(present):
            raise ValueError(f"state_dict={sorted(unknown)}: are no parameters of this model")
        for name in sorted(self._frozen & set(state_dict)):
            if not torch.equal(state_dict[name], present[name]):
                raise ValueError(f"state_dict[{name!r}]: differs from the model's, which is frozen")
        vector = torch.empty(self.num_parameters)
        for name, view in self.views(vector).items():
            if name not in state_dict or tuple(state_dict[name].shape) != tuple(view.shape):
                found = tuple(state_dict[name].shape) if name in state_dict else "missing"
                raise ValueError(f"state_dict[{name!r}]={found}: must be {tuple(view.shape)}")
            view.copy_(state_dict[name])
        return vector.numpy()

    def load(self, vector: NDArray[np.float32]) -> None:
        """Copy ``vector`` (d,) into the model."""
        self.vector.copy_(as_tensor(self._checked(vector)))

    def buffers(self) -> NDArray[np.float32]:
        """A copy of the floating-point buffers (normalisation statistics), flat."""
        if not self._buffers:
            return np.empty(0, np.float32)
        return torch.cat([b.detach().flatten() for b in self._buffers]).float().cpu().numpy()

    def load_buffers(self, values: NDArray[np.float32]) -> None:
        """Copy ``values``, as ``buffers`` returns them, into the model's buffers."""
        if values.shape != (self.num_buffers,):
            raise ValueError(f"buffers={values.shape}: must have shape ({self.num_buffers},)")
        start = 0
        for buffer in self._buffers:
            part = torch.tensor(values[start : start + buffer.numel()])
            buffer.copy_(part.view(buffer.shape))
            start += buffer.numel()

    def _checked(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        if vector.shape != (self.num_parameters,):
            raise ValueError(
                f"parameters={vector.shape}: must have shape ({self.num_parameters},), "
                "those of this model"
            )
        return vector


def _rests(part: nn.Module) -> bool:
    """Whether training leaves ``part``, with all that is in it, in evaluation mode."""
    trains = [parameter.requires_grad for parameter in part.parameters()]
    return not part.training or (bool(trains) and not any(trains))


def _order(module: nn.Module, name: str) -> tuple[int, ...]:
    """The axes of a parameter, slowest first, as it is stored."""
    owner, _, own_name = name.rpartition(".")
    layer = module.get_submodule(owner)
    if own_name == "weight" and isinstance(layer, nn.Conv2d):
        return (0, 2, 3, 1)
    if own_name == "weight" and isinstance(layer, nn.Linear):
        return (1, 0)
    return tuple(range(module.get_parameter(name).dim()))
