"""δ(ε) of composed privacy losses: of few by summation, of many by Fourier inversion.

The latter to some ten digits however small it is. ``parts``: for each kind of release its losses,
the logarithms of their masses, and a count.
"""

import math

import numpy as np
from scipy.optimize import minimize_scalar

BLOCK, BLOCKS = 200, 50


def summed_delta(parts, level):
    """E(1 − e^{ε−L})₊ over all values of the sum of ``parts``, lattice losses with few copies."""
    losses, masses = np.zeros(1), np.ones(1)
    for part in parts:
        for _ in range(part.count):
            losses = np.add.outer(losses, part.losses).ravel()
            masses = np.multiply.outer(masses, part.probabilities).ravel()
    return float(masses @ np.maximum(0, -np.expm1(level - losses)))


def log_moment(parts, s):
    """Σ count · ln E e^{sL} at complex ``s``, shape (points,)."""
    total = np.zeros(len(s), complex)
    for losses, log_masses, count in parts:
        exponent = np.multiply.outer(s, losses) + log_masses
        top = exponent.real.max()
        total += count * (np.log(np.exp(exponent - top).sum(axis=1)) + top)
    return total


def log_delta(parts, level):
    """ln E(1 − e^{ε−L})₊ = ln ∫ e^{K(s)−sε}/(s(s+1)) ds/2πi, on the line through the saddle."""

    def moment(theta):
        return log_moment(parts, np.array([theta]))[0].real

    def height(log_theta):
        theta = math.exp(log_theta)
        return moment(theta) - theta * level - math.log(theta * (theta + 1))

    theta = math.exp(minimize_scalar(height, bounds=(-3, 9), method="bounded").x)
    near = [moment(theta * factor) for factor in (0.999, 1.0, 1.001)]
    spread = math.sqrt(near[0] - 2 * near[1] + near[2]) / (0.001 * theta)
    # The sum repeats δ, tilted, with this period: far from where it begins, and where it has ended.
    step = 2 * math.pi / max(75 / theta, 40 * spread)
    scale, total = None, 0.0
    for start in range(0, BLOCK * BLOCKS, BLOCK):
        s = theta + 1j * step * np.arange(start, start + BLOCK)
        exponent = log_moment(parts, s) - s * level - np.log(s * (s + 1))
        if scale is None:
            scale, total = exponent[0].real, -0.5
        values = np.exp(exponent - scale).real
        total += values.sum()
        if np.abs(values).max() < 1e-10:
            # Below what cancels here, δ is 0: no loss is so large.
            return scale + math.log(step / math.pi * total) if total > 1e-9 else -math.inf
    raise ValueError("the integral does not converge")
