"""Laplace noise: the privacy loss of one release, on a lattice.

A vector of independent Laplace noises with L1 sensitivity Δ is no worse than one number with
sensitivity Δ. Proof for two coordinates a ≤ b (the others follow by induction): for ε ≥ 0,
δ(ε) of the pair is E[δ_b(ε − L_a)], which rises with L_a ≤ ε_a, so it is at most
δ_b(ε − ε_a); and ε − ε_a ≥ −ε_b, where δ_b(ε − ε_a) ≤ δ_{a+b}(ε) — with equality for
continuous noise, δ_c(ε) = 1 − e^{(ε−ε_c)/2}; for discrete noise both are a maximum over
thresholds, and the right side has more of them. ε < 0 follows by symmetry. So the scalar
loss below covers vectors.
"""

from __future__ import annotations

import math

import numpy as np

from privacy.accounting.lattice import LatticeLoss
from privacy.events import LaplaceEvent

# Cells between 0 and ε0 for continuous noise, or for a grid finer than this.
_CELLS = 512


def loss(event: LaplaceEvent, count: int = 1) -> LatticeLoss:
    """Privacy loss of ``count`` releases; the ε-DP worst case if the grid is not known."""
    epsilon = 1 / event.noise_multiplier
    steps = event.sensitivity_steps
    if steps is None:
        steps = 1
    if steps == 0:
        return _continuous(epsilon, count)
    exact = _discrete(epsilon, steps, count)
    return exact if steps <= _CELLS else exact.on_step(epsilon / _CELLS)


def _discrete(epsilon: float, steps: int, count: int) -> LatticeLoss:
    """Noise ∝ t^|x|, t = e^{−ε/steps}, x integer; neighbours ``steps`` apart.

    The loss at x is (ε/steps)·(steps − 2x), cut at ±ε.
    """
    t = math.exp(-epsilon / steps)
    x = np.arange(steps + 1, dtype=np.float64)
    mass = math.tanh(epsilon / steps / 2) * np.exp(-epsilon / steps * x)
    mass[0] = 1 / (1 + t)
    mass[-1] = math.exp(-epsilon) / (1 + t)
    probabilities = np.zeros(2 * steps + 1)
    probabilities[::2] = mass[::-1]
    return LatticeLoss(epsilon / steps, -steps, probabilities, count)


def _continuous(epsilon: float, count: int) -> LatticeLoss:
    """±ε with ½ and ½e^{−ε}, density ¼e^{−(ε−l)/2} between; each cell split to its ends.

    A cell keeps its mass under P and under Q (``LatticeLoss.on_step``).
    """
    step = epsilon / _CELLS
    lower_ends = step * np.arange(-_CELLS, _CELLS, dtype=np.float64)
    at_lower_end = np.exp((lower_ends - epsilon) / 2)
    cell = 0.5 * at_lower_end * math.expm1(step / 2)
    up = 2 * at_lower_end * math.sinh(step / 4) ** 2 / -math.expm1(-step)
    probabilities = np.zeros(2 * _CELLS + 1)
    probabilities[:-1] += cell - up
    probabilities[1:] += up
    probabilities[0] += 0.5 * math.exp(-epsilon)
    probabilities[-1] += 0.5
    return LatticeLoss(step, -_CELLS, probabilities, count)
