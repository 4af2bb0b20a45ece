"""Which backend trains a model, by what it is made of and what is asked of the processor."""

from __future__ import annotations

from typing import Literal

from murmur.learning.kernels.flat import FlatModel
from murmur.learning.kernels.half_precision import computes_half, has_bfloat16
from murmur.learning.kernels.manual_gradients import ManualBackend, supports
from murmur.learning.layers import Flatten
from murmur.learning.training.gradient import AutogradBackend, Backend

Precision = Literal["fp32", "bf16", "auto"]


def backend_for(
    flat: FlatModel, input_shape: tuple[int, int, int], fused: bool, precision: Precision
) -> Backend:
    """The fastest one that does what is asked; a model may bring its own.

    ``precision=auto``: bf16 where model and processor can.

    Raises:
        ValueError: ``precision`` is bf16, and the processor or the model cannot.
    """
    own = getattr(flat.module, "backend", None)
    manual = own is None and supports(flat.module)
    half = precision != "fp32"
    if half and (obstacle := _obstacle(flat, manual)) is not None:
        if precision == "bf16":
            raise ValueError(f"precision=bf16: {obstacle}; use fp32")
        half = False
    if manual:
        return ManualBackend(flat, input_shape, fused, half)
    return AutogradBackend(flat, input_shape) if own is None else own(flat, input_shape)


def _obstacle(flat: FlatModel, manual: bool) -> str | None:
    """Why nothing of this model can be computed in bfloat16 here; None where something can."""
    if not flat.vector.is_cpu:
        return "is for processors, where a GPU has compute.mixed_precision"
    if not has_bfloat16():
        return "this processor does not compute in bfloat16"
    layers = [layer for layer in flat.module.children() if not isinstance(layer, Flatten)]
    if not manual or not any(map(computes_half, layers[1:])):
        return (
            "is for plain sequences of layers with a second convolution of stride 1, or a second "
            "linear layer of 512 × 512 weights or more"
        )
    return None
