"""Mechanisms: frozen values that privatise data and say, as an event, what they did.

``privatize(x, rng)`` returns a private copy of ``x``, ``event()`` what accounting needs to know.
Discrete mechanisms compare integers with integers; the continuous ones are offered for
comparison only, and only with ``idealized=True``.
"""

from privacy.mechanisms.clipping import clip_l2, project_simplex
from privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from privacy.mechanisms.discrete_laplace import DiscreteLaplace
from privacy.mechanisms.distributed_gaussian import DistributedGaussian
from privacy.mechanisms.gaussian import (
    Gaussian,
    analytic_gaussian_delta,
    analytic_gaussian_sigma,
)
from privacy.mechanisms.laplace import Laplace
from privacy.mechanisms.quantization import (
    quantize_nearest,
    quantize_simplex,
    quantize_stochastic,
    quantized_l1_sensitivity,
    quantized_l2_sensitivity,
    quantized_simplex_sensitivity,
)
from privacy.mechanisms.randomized_bits import BinaryRandomizedResponse, StochasticBits
from privacy.mechanisms.randomized_response import RandomizedResponse
from privacy.mechanisms.selection import ExponentialMechanism, PermuteAndFlip
from privacy.mechanisms.zcdp import zcdp_delta, zcdp_from_epsilon_delta

__all__ = [
    "BinaryRandomizedResponse",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "DistributedGaussian",
    "ExponentialMechanism",
    "Gaussian",
    "Laplace",
    "PermuteAndFlip",
    "RandomizedResponse",
    "StochasticBits",
    "analytic_gaussian_delta",
    "analytic_gaussian_sigma",
    "clip_l2",
    "project_simplex",
    "quantize_nearest",
    "quantize_simplex",
    "quantize_stochastic",
    "quantized_l1_sensitivity",
    "quantized_l2_sensitivity",
    "quantized_simplex_sensitivity",
    "zcdp_delta",
    "zcdp_from_epsilon_delta",
]
