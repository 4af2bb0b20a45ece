"""Opacus's per-sample gradients for layers in whatever surroundings a model puts them.

A module of its own, since Opacus takes seconds to import. Three rules are our own:

* Where Opacus hooks into modules, nobody may change a layer's output in place, as residual
  networks do (``out += x``, ``ReLU(inplace=True)``). Here a hook on the output itself takes the
  gradient, as it was before the change.
* A layer in evaluation mode whose weights train has gradients, too.
* ``Embedding.padding_idx`` has no gradient, as in PyTorch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.embedding import compute_embedding_grad_sample
from opacus.grad_sample.functorch import prepare_layer
from torch import Tensor, nn

from murmur.learning.training.clipped_sums import Gradients, Products


class HookedModule(GradSampleModule):
    """A module whose backward pass leaves each parameter's ``grad_sample``, (B, *its shape).

    Args:
        module: the model; its layers get hooks. The loss is a sum over examples.
        clipping: installed kernels, or None; with them a weight may get ``Products``.

    Raises:
        ValueError: Opacus has no per-sample gradients for a layer of it.
    """

    GRAD_SAMPLERS: ClassVar[dict[type[nn.Module], Any]]

    def __init__(self, module: nn.Module, clipping: Any = None) -> None:
        unsupported = self.validate(module)
        if unsupported:
            raise ValueError(str(unsupported[0]))
        self._clipping = clipping
        super().__init__(module, loss_reduction="sum")

    def add_hooks(self, **how: Any) -> None:
        """See Opacus; called once, when the module is wrapped."""
        names = {layer: name for name, layer in self._module.named_modules()}
        for layer in self.iterate_submodules(self._module):
            if type(layer) not in self.GRAD_SAMPLERS:
                prepare_layer(layer)
            layer.register_forward_hook(partial(self._capture, how, names[layer]))
        self.enable_hooks()

    def _capture(
        self, how: dict[str, Any], name: str, layer: nn.Module, inputs: Any, output: Any
    ) -> None:
        """Take the layer's inputs now, and its output's gradient when it comes.

        A forward hook of PyTorch's; Opacus keeps activations and combines both. ValueError, which
        names the layer's parameters, where it cannot.
        """
        reached = output if isinstance(output, Tensor) else output[0]
        if not reached.requires_grad:
            return
        training = layer.training
        layer.training = True  # or Opacus passes it over
        self.capture_activations_hook(layer, inputs, output)
        layer.training = training

        def backwards(gradient: Tensor) -> None:
            if self._take(layer, gradient):
                return
            try:
                self.capture_backprops_hook(
                    layer,
                    inputs,
                    (gradient,),
                    loss_reduction=how["loss_reduction"],
                    batch_first=how["batch_first"],
                )
            except Exception as error:  # Opacus's and PyTorch's own, of several kinds
                own = [part for part, p in layer.named_parameters(name, False) if p.requires_grad]
                raise ValueError(f"{', '.join(own)} of {type(layer).__name__}") from error

        reached.register_hook(backwards)

    def _take(self, layer: Any, gradient: Tensor) -> bool:
        """Leave a layer's gradients as the kernels make them; whether they could.

        Args:
            layer: whose output was reached.
            gradient: of the output.
        """
        own = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        # A second use adds to the gradient of the first one.
        once = all(p._forward_counter == 1 and not hasattr(p, "_current_grad_sample") for p in own)
        if self._clipping is None or type(layer) not in _BY_KERNELS or not once:
            return False
        inputs = layer.activations[-1][0]
        if not layer.weight.requires_grad or not inputs.dtype == gradient.dtype == torch.float32:
            return False
        found = _BY_KERNELS[type(layer)](self._clipping, layer, inputs, gradient.detach())
        if found is None:
            return False
        layer.activations.pop()
        for parameter in own:
            parameter._forward_counter -= 1
            parameter.grad_sample = found[parameter is not layer.weight]
        return True


Found = tuple[Gradients, Tensor] | None
"""Per-sample gradients of a weight and of a bias; None where Opacus has to make them."""


def _linear(clipping: Any, layer: nn.Linear, inputs: Tensor, residuals: Tensor) -> Found:
    """Those of a linear layer's weight unmade, (B, outputs) and (B, inputs) as their own memory."""
    if inputs.dim() != 2 or not clipping.fits(layer.in_features):
        return None
    parts = [part.clone(memory_format=torch.contiguous_format) for part in (residuals, inputs)]
    return Products(*parts), parts[0].clone()


def _convolution(clipping: Any, layer: nn.Conv2d, inputs: Tensor, residuals: Tensor) -> Found:
    """Those of a convolution; the bias's as Opacus has them."""
    rows = clipping.filters.samples(layer, inputs, residuals)
    if rows is None:
        return None
    return rows, residuals.flatten(2).sum(dim=2)


_BY_KERNELS: dict[type[nn.Module], Callable[..., Found]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
}


def _embedding(
    layer: nn.Embedding, activations: list[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    """Opacus's per-sample gradients of an embedding, none for the row that stands for padding."""
    samples = compute_embedding_grad_sample(layer, activations, backprops)
    if layer.padding_idx is not None and layer.weight in samples:
        samples[layer.weight][:, layer.padding_idx] = 0
    return samples


HookedModule.GRAD_SAMPLERS = {**GradSampleModule.GRAD_SAMPLERS, nn.Embedding: _embedding}
