"""A model whose parameters are views into one flat vector.

Federated learning treats a model as a vector: it is clipped, noised, averaged and sent as one. Here
it is stored as one, too: loading is one copy, an optimiser's step a handful of operations over the
whole vector.

**Order.** Parameters follow ``module.named_parameters()``, each in PyTorch's own shape, its last
axis fastest, as ``torch.nn.utils.parameters_to_vector`` has them. This order is public: it is that
of everything that travels, of checkpoints and of golden values. A backend that computes faster in
another one converts at its own door (``training.backends.Backend.to_layout``).

**Frozen parameters** (``requires_grad=False``) are no part of the vector: they stay as they were
given, so that they are neither trained, clipped, noised nor sent.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from murmur.learning.training.batches import as_tensor


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
        num_parameters: d.
        num_buffers: how many numbers ``buffers`` has.

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
        self._shapes = {name: p.shape for name, p in parameters.items()}
        self._sizes = [shape.numel() for shape in self._shapes.values()]
        self.num_parameters = sum(self._sizes)
        self.vector = torch.empty(self.num_parameters, device=device)
        self._gradient: Tensor | None = None
        resting = {name: part for name, part in module.named_modules() if _rests(part)}
        self._resting = list(resting)
        kept = {id(buffer) for part in resting.values() for buffer in part.buffers()}
        self._frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
        self._frozen |= {name for name, b in module.named_buffers() if id(b) in kept}
        floating = [b for b in module.buffers() if b.is_floating_point()]
        self._buffers = [b for b in floating if id(b) not in kept]
        self.num_buffers = sum(b.numel() for b in self._buffers)
        for name, view in self.views(self.vector).items():
            parameter = module.get_parameter(name)
            view.copy_(parameter.detach())
            parameter.data = view

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Views into ``vector`` (d,) under PyTorch's names and shapes, without a copy."""
        parts = zip(self._shapes.items(), vector.split(self._sizes), strict=True)
        return {name: part.view(shape) for (name, shape), part in parts}

    def train(self, module: nn.Module | None = None) -> None:
        """Put the module, or ``module``, a copy of it, in training mode, but for what rests."""
        if module is None:
            module = self.module
        module.train()
        for name in self._resting:
            module.get_submodule(name).training = False

    @property
    def gradient(self) -> Tensor:
        """float32 (d,), into which autograd adds, in the order of ``vector``. Made on first use."""
        if self._gradient is None:
            self._gradient = torch.zeros_like(self.vector)
            for name, view in self.views(self._gradient).items():
                self.module.get_parameter(name).grad = view
        return self._gradient

    def state_dict(self, vector: NDArray[np.float32] | None = None) -> dict[str, Tensor]:
        """Contiguous copies of the parameters, named and shaped as PyTorch does, on the CPU.

        Args:
            vector: (d,); the present parameters where it is None.

        Returns:
            All parameters, frozen ones too, and the module's present buffers.

        Raises:
            ValueError: ``vector`` has another length.
        """
        named: dict[str, Tensor] = dict(self.module.named_parameters())
        if vector is not None:
            named |= self.views(torch.tensor(self._checked(vector)))
        named |= dict(self.module.named_buffers())
        return {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
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
            if name not in state_dict:
                raise ValueError(f"state_dict[{name!r}]=missing: must be {tuple(view.shape)}")
            found = state_dict[name]
            if found.shape != view.shape:
                shapes = f"{tuple(found.shape)}: must be {tuple(view.shape)}"
                raise ValueError(f"state_dict[{name!r}]={shapes}")
            view.copy_(found)
        return vector.numpy()

    def load(self, vector: NDArray[np.float32]) -> None:
        """Copy ``vector`` (d,) into the model; ValueError if it has another length."""
        self.vector.copy_(as_tensor(self._checked(vector)))

    def buffers(self) -> NDArray[np.float32]:
        """A copy of the floating-point buffers (normalisation statistics), (num_buffers,)."""
        if not self._buffers:
            return np.empty(0, np.float32)
        return torch.cat([b.detach().flatten() for b in self._buffers]).float().cpu().numpy()

    def load_buffers(self, values: NDArray[np.float32]) -> None:
        """Copy ``values``, as ``buffers`` returns them, into the model's buffers.

        Raises:
            ValueError: ``values`` are not (num_buffers,).
        """
        if values.shape != (self.num_buffers,):
            raise ValueError(f"buffers={values.shape}: must have shape ({self.num_buffers},)")
        parts = torch.tensor(values).split([b.numel() for b in self._buffers])
        for buffer, part in zip(self._buffers, parts, strict=True):
            buffer.copy_(part.view(buffer.shape))

    def _checked(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        if vector.shape != (self.num_parameters,):
            raise ValueError(
                f"parameters={vector.shape}: must have shape ({self.num_parameters},), "
                "those of this model"
            )
        return vector


def _rests(part: nn.Module) -> bool:
    """True if training leaves ``part``, with all that is in it, in evaluation mode."""
    trains = [parameter.requires_grad for parameter in part.parameters()]
    return not part.training or (bool(trains) and not any(trains))
