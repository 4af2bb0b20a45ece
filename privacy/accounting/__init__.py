"""From events to (ε, δ): ``epsilon(event, delta, threat)`` and the mathematics behind it."""

from privacy.accounting.compose import Spend, delta, epsilon, parallel
from privacy.accounting.flatten import UnsupportedEventError, supports
from privacy.accounting.threat import Threat, View
from privacy.neighbours import Adjacency, Unit

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
