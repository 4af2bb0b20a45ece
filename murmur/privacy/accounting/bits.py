"""Randomised response on bit vectors: seen alone, and in sums over clients.

A bit is kept with p = ½ + γ and flipped with q = ½ − γ. Seen alone, a vector in which
neighbours differ in k bits is k binary randomised responses. Under secure aggregation over n
honest clients one coordinate is a Poisson-binomial sum (Chen, Özgür, Kairouz 2022, m = 1):
with B_k = Bin(k, p) + Bin(n−1−k, q) from the other clients, P = B_k + Bern(p) and
Q = B_k + Bern(q). dp-accounting has no such sums.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from murmur.privacy.accounting.binomial import probabilities
from murmur.privacy.accounting.lattice import Floats
from murmur.privacy.accounting.renyi import Pair

# Elements of the tables of one coordinate's probabilities, over k and outcome.
_ELEMENTS = 1_000_000
_TRIMMED = 1e-250
# From α·ε0 = 500 on, D_α of one client alone is used. It is larger, but both are close to ε0.
_HIGHEST_EXPONENT = 500.0


def epsilon_of_bit(gamma: float) -> float:
    """ε0 = ln(p/q) of one bit."""
    return math.log1p(2 * gamma) - math.log1p(-2 * gamma)


def log_moment(gamma: float, excess_order: float) -> float:
    """ln(p^α q^{1−α} + q^α p^{1−α}) at α − 1 = ``excess_order``, for one bit."""
    if gamma == 0:
        return 0.0
    exponent = excess_order * epsilon_of_bit(gamma)
    return exponent + math.log(0.5 + gamma + (0.5 - gamma) * math.exp(-2 * exponent))


def summed_divergence(gamma: float, honest_clients: int, order: float) -> float:
    """ρ_n(α): D_α of one coordinate of the sum, worst over k and over both directions.

    D_α is convex in each other client's P(bit is 1), so its worst value is at p or q for each:
    some k. Both directions are covered, because flipping all bits turns D_α(Q‖P) at k into
    D_α(P‖Q) at n−1−k.
    """
    epsilon = epsilon_of_bit(gamma)
    if honest_clients == 1 or order * epsilon > _HIGHEST_EXPONENT:
        return log_moment(gamma, order - 1) / (order - 1)
    worst = float(np.max(_pair(gamma, honest_clients).divergence(order)))
    # What was trimmed may have had the ratio e^{ε0}.
    return worst + 2 * honest_clients * _TRIMMED * math.exp(order * epsilon) / (order - 1)


@lru_cache(maxsize=64)
def _pair(gamma: float, honest_clients: int) -> Pair:
    """One coordinate's Q and P/Q: one row per block of k, its outcomes from some number on."""
    rows = [
        np.convolve(_trimmed(kept, 0.5 + gamma), _trimmed(flipped, 0.5 - gamma))
        for kept, flipped in _blocks(gamma, honest_clients - 1)
    ]
    width = max(row.size for row in rows)
    one_less = np.stack([np.pad(row, (1, width - row.size)) for row in rows])
    same = np.roll(one_less, -1, axis=1)
    base = (0.5 - gamma) * one_less + (0.5 + gamma) * same
    excess = np.zeros_like(base)
    np.divide(2 * gamma * (one_less - same), base, out=excess, where=base > _TRIMMED)
    with np.errstate(divide="ignore"):
        return Pair(np.log(base), np.log1p(excess))


def _trimmed(trials: int, success: float) -> Floats:
    """Binomial probabilities without the outcomes below 1e-250 at both ends."""
    values = probabilities(trials, success)
    return values[values > _TRIMMED]


def _blocks(gamma: float, others: int) -> list[tuple[int, int]]:
    """Numbers of others that (kept, flipped), such that every k in 0 … ``others`` is covered.

    For k in a block [a, b], B_k is Bin(a, p) + Bin(others − b, q) plus further independent
    trials, which only lower the divergence: the block's value is an upper bound for all of it.
    The two ends, where the worst k is found in practice, are blocks of one; so is every k
    while that is affordable.
    """
    inner = others - 1
    if inner < 1:
        return [(k, others - k) for k in range(others + 1)]
    width = min(others, 68 * math.sqrt(others * (0.25 - gamma**2)) + 68)
    blocks = min(inner, max(128, int(_ELEMENTS / width)))
    starts = [1 + inner * i // blocks for i in range(blocks)]
    ends = [start - 1 for start in starts[1:]] + [inner]
    covered = zip(starts, ends, strict=True)
    return [(0, others), *((a, others - b) for a, b in covered), (others, 0)]
