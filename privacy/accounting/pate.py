"""PATE: noisy plurality over teachers' votes (Papernot et al. 2017, 2018).

One record sits in one teacher's shard and moves one vote from a class to another: L1
sensitivity 2, L2 √2.
"""

from __future__ import annotations

import math

from privacy.accounting import zcdp
from privacy.events import Event, GaussianEvent, LaplaceEvent, RepeatedEvent


def gaussian_votes(sigma: float, queries: int) -> Event:
    """``queries`` vote histograms with Gaussian noise ``sigma`` on each count."""
    return RepeatedEvent(GaussianEvent(sigma / math.sqrt(2)), queries)


def laplace_votes(scale: float, queries: int) -> Event:
    """``queries`` vote histograms with continuous Laplace noise ``scale`` on each count."""
    return RepeatedEvent(LaplaceEvent(scale / 2, 0), queries)


def concentrated_epsilon(sigma: float, queries: int, delta: float) -> float:
    """ε of Gaussian votes by concentrated DP, ρ = queries/σ²; the exact one is smaller."""
    return zcdp.to_epsilon(queries / sigma**2, delta)
