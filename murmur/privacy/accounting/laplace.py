"""Laplace noise: the privacy loss of one release, on a lattice.

Discrete noise ∝ e^{−α|x|}, x integer, neighbours m steps apart, ε0 = αm: the loss at x is
α(m − 2x), cut at ±ε0. Continuous noise is the limit m → ∞. A lattice too long to keep is
thinned to every w-th point, m = wK, by splitting the points between (``LatticeLoss.of``); the
sums are geometric, so the thinned masses have a closed form, which also holds for w → ∞.

A vector of independent noises with L1 sensitivity Δ is no worse than one number with
sensitivity Δ. Proof for two coordinates a ≤ b (the others follow by induction): for ε ≥ 0,
δ(ε) of the pair is E[δ_b(ε − L_a)], which rises with L_a ≤ ε_a, so it is at most
δ_b(ε − ε_a); and ε − ε_a ≥ −ε_b, where δ_b(ε − ε_a) ≤ δ_{a+b}(ε) — with equality for
continuous noise, δ_c(ε) = 1 − e^{(ε−ε_c)/2}; for discrete noise both are a maximum over
thresholds, and the right side has more of them. ε < 0 follows by symmetry. So the scalar
loss below covers vectors. For the same reason more steps at the same α are never better.

Ours, since dp-accounting has no vectors, and rounds to a lattice that is not the noise's own.
"""

from __future__ import annotations

import math

import numpy as np

from murmur.privacy.accounting.lattice import LatticeLoss
from murmur.privacy.events import LaplaceEvent

# Points between +ε0 and −ε0 to which longer lattices are thinned.
_POINTS = 256


def loss(event: LaplaceEvent) -> LatticeLoss:
    """Privacy loss of one release; the ε-DP worst case, one step, if the grid is not known."""
    epsilon = 1 / event.noise_multiplier
    steps = 1 if event.sensitivity_steps is None else event.sensitivity_steps
    if steps == 0:
        points, end = _POINTS, 0.5
        between = math.tanh(epsilon / points / 2)
        return _lattice(epsilon / points, points, end + between / 2, between)
    alpha = epsilon / steps
    points, width = _thinning(steps)
    moved = math.tanh(alpha / 2) * _moved(alpha, width)
    end = 1 / (1 + math.exp(-alpha)) + moved
    return _lattice(alpha * width, points, end, math.tanh(alpha / 2) + 2 * moved)


def _thinning(steps: int) -> tuple[int, int]:
    """Points K and width w with wK ≥ ``steps``, as little above as can be had."""
    if steps <= 2 * _POINTS:
        return steps, 1
    narrowest = -(-steps // (2 * _POINTS))
    widths = range(narrowest, narrowest + min(narrowest, 1000) + 1)
    width = min(widths, key=lambda w: -steps % w)
    return -(-steps // width), width


def _moved(alpha: float, width: int) -> float:
    """What the w − 1 points between two kept ones give to the upper one, per mass of that.

    Σ_{k<w} sinh(αk) / sinh(αw) = sinh(α(w−1)/2) / (2 sinh(α/2) cosh(αw/2)).
    """
    if width == 1:
        return 0.0
    # sinh(x)/cosh(y) = e^{x−y}(1 − e^{−2x})/(1 + e^{−2y}), which does not overflow.
    ratio = (
        math.exp(-alpha / 2) * -math.expm1(-alpha * (width - 1)) / (1 + math.exp(-alpha * width))
    )
    return ratio / (2 * math.sinh(alpha / 2)) if alpha < 600 else 0.0


def _lattice(decay: float, points: int, end: float, between: float) -> LatticeLoss:
    """Masses ``between`` · e^{−decay·j}, j = 0 … ``points``, with ``end`` in place of the ends."""
    mass = between * np.exp(-decay * np.arange(points + 1, dtype=np.float64))
    mass[0] = end
    mass[-1] = end * math.exp(-decay * points)
    if points % 2 == 0:
        return LatticeLoss(2 * decay, -points // 2, mass[::-1])
    probabilities = np.zeros(2 * points + 1)
    probabilities[::2] = mass[::-1]
    return LatticeLoss(decay, -points, probabilities)
