"""What did the image look like? From the change of one client's first layer.

A linear layer y = Wx + b has ∂L/∂W_k = (∂L/∂b_k) x, so that a step of SGD on one image changes row
k of W by the image times the change of b_k (Phong et al., "Privacy-preserving deep learning via
additively homomorphic encryption", IEEE TIFS 2018, section 3). Several images give a mixture.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def image_of_change(
    weights: NDArray[np.floating], biases: NDArray[np.floating]
) -> NDArray[np.float64]:
    """The input (d,) of a linear layer that changed by ``weights`` (k, d) and ``biases`` (k,).

    The mean over rows, weighted by the squares of what their biases changed by: the least-squares
    solution of ``weights`` = ``biases`` x^T. Zeros where no bias changed.
    """
    change = np.asarray(biases, np.float64)
    square = float(change @ change)
    if not square:
        return np.zeros(weights.shape[1])
    return change @ np.asarray(weights, np.float64) / square


def likeness(images: NDArray[np.floating], originals: NDArray[np.floating]) -> NDArray[np.float64]:
    """Pearson's correlation of each of n images with each of m originals, (n, m)."""
    one, two = _centred(images), _centred(originals)
    return one @ two.T


def _centred(images: NDArray[np.floating]) -> NDArray[np.float64]:
    flat = images.reshape(len(images), -1).astype(np.float64)
    flat -= flat.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(flat, axis=1, keepdims=True)
    return flat / np.where(lengths > 0, lengths, 1)
