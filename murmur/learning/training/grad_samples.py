"""Opacus's per-sample gradients for layers in whatever surroundings a model puts them.

A module of its own, since Opacus takes seconds to import. Three rules are our own:

* Where Opacus hooks into modules, nobody may change a layer's output in place, as residual
  networks do (``out += x``, ``ReLU(inplace=True)``). Here a hook on the output itself takes the
  gradient, as it was before the change.
* A layer in evaluation mode whose weights train has gradients, too.
* ``Embedding.padding_idx`` has no gradient, as in PyTorch.
"""

from functools import partial
from typing import Any, ClassVar

from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.embedding import compute_embedding_grad_sample
from opacus.grad_sample.functorch import prepare_layer
from torch import Tensor, nn


class HookedModule(GradSampleModule):
    """A module whose backward pass leaves each parameter's ``grad_sample``, (B, *its shape).

    Args:
        module: the model; its layers get hooks. The loss is a sum over examples.

    Raises:
        ValueError: Opacus has no per-sample gradients for a layer of it.
    """

    GRAD_SAMPLERS: ClassVar[dict[type[nn.Module], Any]]

    def __init__(self, module: nn.Module) -> None:
        unsupported = self.validate(module)
        if unsupported:
            raise ValueError(str(unsupported[0]))
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


def _embedding(
    layer: nn.Embedding, activations: list[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    """Opacus's per-sample gradients of an embedding, none for the row that stands for padding."""
    samples = compute_embedding_grad_sample(layer, activations, backprops)
    if layer.padding_idx is not None and layer.weight in samples:
        samples[layer.weight][:, layer.padding_idx] = 0
    return samples


HookedModule.GRAD_SAMPLERS = {**GradSampleModule.GRAD_SAMPLERS, nn.Embedding: _embedding}
