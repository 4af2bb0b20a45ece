"""From events to (ε, δ): ``epsilon(event, delta, threat)`` and the mathematics behind it."""

from murmur.privacy.accounting.compose import Spend, delta, epsilon, parallel
from murmur.privacy.accounting.flatten import UnsupportedEventError, supports
from murmur.privacy.accounting.threat import Threat, View
from murmur.privacy.neighbours import Adjacency, Unit

__all__ = [
    "Adjacency",
    "Spend",
    "Threat",
    "Unit",
    "UnsupportedEventError",
    "View",
    "delta",
    "epsilon",
    "parallel",
    "supports",
]
