"""Mechanisms: frozen values that privatise data and say, as an event, what they did.

``privatize(x, rng)`` returns a private copy of ``x``, ``event()`` what accounting needs to know.
Noise is discrete throughout: floating-point noise on floating-point data reveals low bits of it.
"""

from murmur.privacy.mechanisms.clipping import clip_l2, project_simplex
from murmur.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from murmur.privacy.mechanisms.discrete_laplace import DiscreteLaplace
from murmur.privacy.mechanisms.distributed_gaussian import DistributedGaussian
from murmur.privacy.mechanisms.grid import (
    quantize_nearest,
    quantize_simplex,
    quantized_l1_sensitivity,
    quantized_l2_sensitivity,
    quantized_simplex_sensitivity,
)
from murmur.privacy.mechanisms.randomized_bits import BinaryRandomizedResponse, stochastic_bits
from murmur.privacy.mechanisms.randomized_response import RandomizedResponse, debiased
from murmur.privacy.mechanisms.selection import ExponentialMechanism, PermuteAndFlip

__all__ = [
    "BinaryRandomizedResponse",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "DistributedGaussian",
    "ExponentialMechanism",
    "PermuteAndFlip",
    "RandomizedResponse",
    "clip_l2",
    "debiased",
    "project_simplex",
    "quantize_nearest",
    "quantize_simplex",
    "quantized_l1_sensitivity",
    "quantized_l2_sensitivity",
    "quantized_simplex_sensitivity",
    "stochastic_bits",
]
