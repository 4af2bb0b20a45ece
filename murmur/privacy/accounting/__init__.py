"""From events to (ε, δ): ``epsilon(event, delta, threat)`` and the mathematics behind it.

Read from the outside in: ``compose`` (bounds on ε, and the smallest), ``flatten`` (what an
adversary sees), ``pld`` and ``privacy_loss`` (composition of privacy losses), ``rdp`` (Rényi and
concentrated DP), then single releases: ``elementary_losses``, ``gaussian``, ``bits``. ``calibrate``
goes the other way, from ε to noise.

dp-accounting is what tests compare with. Nothing here is left to it, and docs/accounting.md has the
measurements: at small δ its ε is below the truth, its lattice makes many small releases cost too
much, and importing it takes a tenth of a short run.

``compose`` and with it SciPy are loaded when something is composed: a device that admits a release
of Gaussian noise, with nothing else in its ledger, does without (``gaussian.costs_at_most``).
"""

import importlib
from typing import TYPE_CHECKING, Any

from murmur.privacy.accounting.flatten import Threat, UnsupportedEventError, View
from murmur.privacy.events import Adjacency, Unit

if TYPE_CHECKING:
    from murmur.privacy.accounting.compose import PrivacyCost, epsilon

__all__ = [
    "Adjacency",
    "PrivacyCost",
    "Threat",
    "Unit",
    "UnsupportedEventError",
    "View",
    "epsilon",
]


def __getattr__(name: str) -> Any:
    """Import a name of ``compose`` in ``__all__``; AttributeError for any other name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("murmur.privacy.accounting.compose"), name)
