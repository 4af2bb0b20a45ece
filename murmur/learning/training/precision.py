"""Float32 products with all their bits, on which DP-SGD rests: refused where they are rounded.

Libraries can be told to compute products of float32 numbers in TF32 or bfloat16, by variables of
the environment and by PyTorch's flags. Which products they round depends on their sizes, so an
example's gradient would change in its third digit with the number of others in its lot, and what is
clipped would not be what is added. A refusal follows from the machine alone, never from data.

Sources: oneDNN, "Floating-point math mode"; PyTorch, "Numerical accuracy" and "CUDA semantics"
(TF32); NVIDIA's libraries read NVIDIA_TF32_OVERRIDE by themselves.
"""

import os
from collections.abc import Callable
from operator import attrgetter

import torch
from torch import Tensor
from torch.nn import functional

_WHOLE = {
    "ONEDNN_DEFAULT_FPMATH_MODE": "STRICT",
    "DNNL_DEFAULT_FPMATH_MODE": "STRICT",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0",
    "NVIDIA_TF32_OVERRIDE": "0",
}
"""Variables, and the one value beside none at which nothing is rounded."""

_FLAGS = (
    "cuda.matmul.fp32_precision",
    "mkldnn.matmul.fp32_precision",
    "mkldnn.conv.fp32_precision",
    "mkldnn.rnn.fp32_precision",
)
_UNROUNDED = ("none", "ieee")
_ERROR = 1e-5  # relative: float32 has a hundredth of it here, TF32 and bfloat16 a hundred times


class PrecisionError(RuntimeError):
    """Float32 products are rounded to fewer bits; the text says by what and what to do."""


def require_float32(device: torch.device) -> None:
    """Refuse settings at which products of float32 numbers have fewer bits than float32.

    cuDNN's convolutions, which PyTorch lets round to TF32 by default, are told not to, for the
    whole process.

    Args:
        device: on which they are computed.

    Raises:
        PrecisionError: names the setting; or, where none is known, the product that was tried.
    """
    for name, whole in _WHOLE.items():
        value = os.environ.get(name, "")
        if value and value.upper() != whole:
            raise PrecisionError(
                f"{name}={value}: lets float32 products be rounded to TF32 or bfloat16, with which "
                f"DP-SGD's clipping is not exact; unset it in the environment, or set it to {whole}"
            )
    for name in _FLAGS:
        value = attrgetter(name)(torch.backends)
        if value not in _UNROUNDED:
            raise PrecisionError(
                f"torch.backends.{name}={value}: rounds float32 products, with which DP-SGD's "
                'clipping is not exact; use torch.set_float32_matmul_precision("highest"), or '
                '"ieee" for the flag'
            )
    if torch.is_autocast_enabled(device.type):
        raise PrecisionError(
            f"torch.autocast on {device.type}: rounds float32 products, with which DP-SGD's "
            "clipping is not exact; switch it off"
        )
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    _try(device)


def _try(device: torch.device) -> None:
    """Refuse a device whose products of made-up numbers are not float32's, whatever the reason."""
    generator = torch.Generator().manual_seed(0)
    for name, (product, *shapes) in _PRODUCTS.items():
        factors = [torch.rand(shape, generator=generator) for shape in shapes]
        right = product(*(factor.double() for factor in factors))
        found = product(*(factor.to(device) for factor in factors)).double().cpu()
        error = float((found - right).norm() / right.norm())
        if not error < _ERROR:
            raise PrecisionError(
                f"float32 products ({name}) are rounded to fewer bits on this machine (relative "
                f"error {error:.0e}), with which DP-SGD's clipping is not exact; look for settings "
                "of TF32 or bfloat16, or compute on another device"
            )


_Product = Callable[..., Tensor]
_PRODUCTS: dict[str, tuple[_Product, tuple[int, ...], tuple[int, ...]]] = {
    "matrices": (torch.matmul, (64, 128), (128, 64)),
    "batches of matrices": (torch.bmm, (16, 32, 64), (16, 64, 32)),
    "convolution": (functional.conv2d, (16, 16, 12, 12), (16, 16, 3, 3)),
}
