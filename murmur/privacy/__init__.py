"""Differential privacy: mechanisms, accounting, audits, and a device's policy and ledger.

A mechanism privatises data and states what that costs; the accountant adds the costs up; an audit
attacks it. Nothing here knows Flower, Hydra or Ray.

>>> import numpy as np
>>> from murmur.privacy import DiscreteGaussian, NoiseGenerator, RepeatedEvent
>>> from murmur.privacy import empirical_epsilon, epsilon
>>> mechanism = DiscreteGaussian(sigma=1.0, sensitivity=1.0, grid=2**-10, dimension=1)
>>> proven = epsilon(RepeatedEvent(mechanism.event(), 10), delta=1e-5)
>>> print(f"{proven.epsilon:.2f} by {proven.method}")
17.88 by privacy-loss distribution, rounded up
>>> noise = NoiseGenerator.from_os()
>>> runs = [mechanism.privatize(np.full((2000, 1), x), noise)[:, 0] for x in (0.0, 1.0)]
>>> empirical_epsilon(*runs, delta=1e-5) < epsilon(mechanism.event(), delta=1e-5).epsilon
True
"""

import importlib
from typing import Any

_MODULES = {
    "murmur.privacy.accounting": (
        *("Adjacency", "Threat", "Unit", "View"),
        "epsilon",
    ),
    "murmur.privacy.accounting.calibrate": ("least_noise",),
    "murmur.privacy.audit": ("empirical_epsilon",),
    "murmur.privacy.budget": ("Budget",),
    "murmur.privacy.events": (
        *("ComposedEvent", "Event", "RepeatedEvent", "PoissonSampledEvent"),
        *("Hiding", "SummedEvent", "ShuffledEvent"),
    ),
    "murmur.privacy.ledger": ("Charge", "Ledger"),
    "murmur.privacy.mechanisms.clipping": ("clip_l2",),
    "murmur.privacy.mechanisms.discrete_gaussian": ("DiscreteGaussian",),
    "murmur.privacy.mechanisms.discrete_laplace": ("DiscreteLaplace",),
    "murmur.privacy.mechanisms.distributed_gaussian": ("DistributedGaussian",),
    "murmur.privacy.mechanisms.randomized_bits": ("BinaryRandomizedResponse",),
    "murmur.privacy.mechanisms.randomized_response": ("RandomizedResponse",),
    "murmur.privacy.mechanisms.selection": ("ExponentialMechanism", "PermuteAndFlip"),
    "murmur.privacy.noise": ("NoiseGenerator",),
    "murmur.privacy.policy": ("Policy", "Refusal"),
    "murmur.privacy.guarantee": ("Exposure",),
    "murmur.privacy.statement": ("Statement",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import what is asked for, and no more: SciPy and the cryptography take a second."""
    if name not in _HOME:
        raise AttributeError(f"module 'murmur.privacy' has no attribute {name!r}; it has {__all__}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
