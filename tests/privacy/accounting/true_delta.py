"""δ(ε) of composed privacy losses by Fourier inversion, to some ten digits however small it is.

``parts``: for each kind of release its losses, the logarithms of their masses, and a count.
"""

import math

import numpy as np
from scipy.optimize import minimize_scalar


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

    def height(theta):
        kernel = theta * level + math.log(theta * (theta + 1))
        return log_moment(parts, np.array([theta]))[0].real - kernel

    theta = minimize_scalar(height, bounds=(0.1, 40), method="bounded").x
    step = theta / 12  # an error of e^−75/δ
    s = theta + 1j * step * np.arange(300)
    exponent = log_moment(parts, s) - s * level - np.log(s * (s + 1))
    values = np.exp(exponent - exponent[0].real).real
    assert abs(values[-1]) < 1e-9
    return exponent[0].real + math.log(step / math.pi * (values.sum() - values[0] / 2))
