"""NbAFL's noise: the paper's closed forms for uploads and broadcasts, and K-random scheduling.

Wei et al., IEEE TIFS 15 (2020), arXiv 1911.00222. Symbols: T rounds, L exposures per client,
N clients, K of them drawn per round, C clip, m the smallest data set's size, p_i weights,
c = √(2 ln(1.25/δ)). All σ are per coordinate. c is valid below ε = 1 only; what the noise
proves is in ``murmur.privacy.accounting.gaussian``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from murmur.privacy.accounting.gaussian import classical_constant


def upload_sigma(
    epsilon: float, delta: float, exposures: int, clip: float, smallest_dataset: int
) -> float:
    """σ_U = c·L·Δ_U/ε with Δ_U = 2C/m."""
    return classical_constant(delta) * exposures * 2 * clip / smallest_dataset / epsilon


def broadcast_sigma(
    epsilon: float,
    delta: float,
    rounds: int,
    exposures: int,
    clip: float,
    smallest_dataset: int,
    weights: Sequence[float],
    b: float = 1.0,
) -> float:
    """σ_D, what the server adds for outsiders who see all T broadcasts; 0 if none is needed.

    ``weights`` p_i of those who answered sum to 1. σ_D² = (2cTC·max p/(bmε))² − σ_U² Σ p_i²,
    which for equal weights without scheduling is (2cC/(mNε))²·(T² − L²N). ``b``: of K-random
    scheduling, 1 without; an infinite one needs no noise.
    """
    unit = classical_constant(delta) * 2 * clip / (smallest_dataset * epsilon)
    needed = (rounds / b * max(weights)) ** 2
    present = exposures**2 * sum(weight**2 for weight in weights)
    return unit * math.sqrt(max(0.0, needed - present))


def scheduling_b(epsilon: float, rounds: int, clients: int, scheduled: int) -> float:
    """The paper's b = −(T/ε) ln(1 − N/K + (N/K) e^{−ε/T}); inf where the logarithm has none.

    It follows from the lower side of subsampling, which does not bind; see
    ``scheduling_b_proven``.
    """
    inside = 1 + clients / scheduled * math.expm1(-epsilon / rounds)
    return -rounds / epsilon * math.log(inside) if inside > 0 else math.inf


def scheduling_b_proven(epsilon: float, rounds: int, clients: int, scheduled: int) -> float:
    """b⁺ = (T/ε) ln(1 + (N/K)(e^{ε/T} − 1)) ≤ b, from the side of subsampling that binds."""
    return rounds / epsilon * math.log1p(clients / scheduled * math.expm1(epsilon / rounds))


def seen_by_outsider(exposures: int, participations: int) -> tuple[int, int, int]:
    """Of one client's participations: uploads seen, broadcasts stripped of others' noise, rest."""
    uploads = min(exposures, participations)
    stripped = min(exposures, participations - uploads)
    return uploads, stripped, participations - uploads - stripped
