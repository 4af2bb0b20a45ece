"""From events to (ε, δ): ``epsilon(event, delta, threat)`` and the mathematics behind it."""

from privacy.accounting.compose import Spend, delta, epsilon, parallel
from privacy.accounting.threat import Adjacency, Threat, Unit

__all__ = ["Adjacency", "Spend", "Threat", "Unit", "delta", "epsilon", "parallel"]
