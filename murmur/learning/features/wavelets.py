"""The scattering transform: a fixed, two-layer convolutional network made of wavelets.

Bruna and Mallat, "Invariant Scattering Convolution Networks", PAMI 35 (2013). For private learning:
Tramèr and Boneh, "Differentially Private Learning Needs Better Features (or Much More Data)",
ICLR 2021 (arXiv 2011.11660). With scales j = 0, 1 and 8 orientations:

    S₀ = x ∗ φ,   S₁ = |x ∗ ψ_λ| ∗ φ,   S₂ = ||x ∗ ψ_λ| ∗ ψ_μ| ∗ φ  with j(μ) > j(λ)

81 channels, each at every fourth pixel. ψ are Morlet wavelets, given in the Fourier domain.
"""

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from murmur.learning.training.batches import as_tensor

SCALES = 2
ORIENTATIONS = 8
STRIDE = 2**SCALES
CHANNELS = 1 + SCALES * ORIENTATIONS + ORIENTATIONS**2
_BANDWIDTH = 0.8  # σ of a wavelet of scale 0, in pixels
_FREQUENCY = 3 * math.pi / 4  # its centre
_SLANT = 4 / ORIENTATIONS  # its width across its waves over that along them
_BORDER = STRIDE // 2
_BLOCK_IMAGES = 16  # images at a time: their wavelets stay in the caches


def scatter(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Coefficients of the scattering transform.

    Args:
        images: (N, C, H, W), H and W at least 8.

    Returns:
        (N, C·81, H', W'), H' = ⌊H/4⌋.

    Raises:
        ValueError: the images are smaller.
    """
    count, channels, height, width = images.shape
    if min(height, width) < 2 * STRIDE:
        raise ValueError(
            f"images of {height}×{width}: scattering needs at least 8×8 pixels; "
            "set features=pca or features=none"
        )
    flat = as_tensor(images).reshape(-1, 1, height, width)
    rows = height // STRIDE
    columns = width // STRIDE
    padded = torch.nn.functional.pad(flat, borders(height, width), mode="reflect")[:, 0]
    out = torch.empty(len(flat), CHANNELS, rows, columns)
    for start in range(0, len(flat), _BLOCK_IMAGES):
        # The first row and column are centred on the border.
        whole = transform(padded[start : start + _BLOCK_IMAGES])
        out[start : start + _BLOCK_IMAGES] = whole[:, :, 1 : rows + 1, 1 : columns + 1]
    return out.reshape(count, channels * CHANNELS, rows, columns).numpy()


def borders(height: int, width: int) -> tuple[int, int, int, int]:
    """Mirrored pixels around an image (left, right, top, bottom), so that edges do not wrap around.

    Height and width become multiples of the stride.
    """
    right = _BORDER + -width % STRIDE
    bottom = _BORDER + -height % STRIDE
    return _BORDER, right, _BORDER, bottom


def cuts(size: int, count: int) -> list[slice]:
    """Overlapping windows of equal width: ``count`` slices of an axis of ``size``."""
    width = -(-size // count)
    starts = np.linspace(0, size - width, count).round().astype(int)
    return [slice(start, start + width) for start in starts]


def transform(x: Tensor) -> Tensor:
    """S of real signals on a torus.

    Args:
        x: (N, H, W), H and W multiples of 4.

    Returns:
        (N, 81, H/4, W/4): S₀, S₁ of both scales, S₂.
    """
    count, height, width = x.shape
    size = (height, width)
    spectrum = torch.fft.fft2(x)[:, None]
    fine = torch.fft.ifft2(spectrum * wavelets(size, 0)).abs()
    coarse = torch.fft.ifft2(_every_second(spectrum * wavelets(size, 1))).abs()
    second = _every_second(torch.fft.fft2(fine)[:, :, None] * wavelets(size, 1))
    paths = torch.fft.ifft2(second).abs().reshape(count, -1, height // 2, width // 2)
    parts = [_smooth(x[:, None], 0), _smooth(fine, 0), _smooth(coarse, 1), _smooth(paths, 1)]
    return torch.cat(parts, dim=1)


def _every_second(spectrum: Tensor) -> Tensor:
    """The spectrum of the signal at every second pixel: aliases fold onto each other.

    (…, H, W) becomes (…, H/2, W/2).
    """
    *lead, height, width = spectrum.shape
    folded = spectrum.reshape(*lead, 2, height // 2, 2, width // 2)
    return (folded[..., 0, :, 0, :] + folded[..., 0, :, 1, :]) / 4 + (
        folded[..., 1, :, 0, :] + folded[..., 1, :, 1, :]
    ) / 4


def _smooth(signal: Tensor, scale: int) -> Tensor:
    """The low-pass filter φ, kept at every fourth pixel.

    Args:
        signal: (…, H, W), at every 2^scale-th pixel.
        scale: j.
    """
    rows, columns = (smoothing(size, scale) for size in signal.shape[-2:])
    return rows @ signal @ columns.T


@lru_cache(maxsize=16)
def smoothing(size: int, scale: int) -> Tensor:
    """φ along one axis, as a matrix.

    Args:
        size: samples of the axis, at every 2^scale-th pixel.
        scale: j.

    Returns:
        (size·2^scale/4, size).
    """
    kernel = torch.fft.ifft(lowpass(size, scale)).real
    places = torch.arange(0, size, STRIDE >> scale)
    return kernel[(places[:, None] - torch.arange(size)) % size].float()


def lowpass(size: int, scale: int) -> Tensor:
    """φ̂ (size,) along one axis, at every 2^scale-th pixel: a Gaussian with φ̂(0) = 1."""
    sigma = _BANDWIDTH * 2.0 ** (SCALES - 1 - scale)
    aliases = 2 * math.pi * torch.arange(-2, 3, dtype=torch.float64)[:, None]
    bump = torch.exp(-((sigma * (_frequencies(size) + aliases)) ** 2) / 2).sum(dim=0)
    return bump / bump[0]


@lru_cache(maxsize=16)
def wavelets(size: tuple[int, int], scale: int) -> Tensor:
    """ψ̂ (8, H, W) of one scale: Gaussians around ξ, less what makes their mean 0.

    One factor for all, so that |φ̂|² + ½Σ(|ψ̂(ω)|² + |ψ̂(−ω)|²) ≤ 1: no signal gains energy.
    """
    power = torch.zeros(size, dtype=torch.float64)
    for each in range(SCALES):
        squares = _morlets(size, each).square().sum(dim=0)
        power += (squares + torch.roll(squares.flip(0, 1), (1, 1), (0, 1))) / 2
    room = 1 - lowpass(size[0], 0).outer(lowpass(size[1], 0)).square()
    used = power > 1e-9
    factor = math.sqrt(float((room[used] / power[used]).min()))
    return (_morlets(size, scale) * factor).float()


def _morlets(size: tuple[int, int], scale: int) -> Tensor:
    """ψ̂ (8, H, W) of one scale before their common factor, in double precision.

    A Morlet wavelet is a Gabor filter, less a bump at ω = 0 that makes its mean 0.
    """
    filters = []
    sigma = _BANDWIDTH * 2**scale
    for number in range(ORIENTATIONS):
        angle = math.pi * number / ORIENTATIONS
        along = torch.tensor([math.sin(angle), math.cos(angle)], dtype=torch.float64)
        across = torch.stack([along[1], -along[0]])
        covariance = sigma**2 * (along.outer(along) + across.outer(across) / _SLANT**2)
        gabor = _bump(size, covariance, along * _FREQUENCY / 2**scale)
        plain = _bump(size, covariance, 0 * along)
        filters.append(gabor - plain * (gabor[0, 0] / plain[0, 0]))
    return torch.stack(filters)


def _bump(size: tuple[int, int], covariance: Tensor, centre: Tensor) -> Tensor:
    """e^(−½(ω−ξ)ᵀΣ(ω−ξ)) on the grid's frequencies, summed over their aliases."""
    total = torch.zeros(size, dtype=torch.float64)
    for shift in torch.cartesian_prod(*[2 * math.pi * torch.arange(-1, 2)] * 2).double():
        grid = torch.meshgrid(*(_frequencies(n) for n in size), indexing="ij")
        away = torch.stack(grid, dim=-1) + shift - centre
        total += torch.exp(-(away @ covariance * away).sum(dim=-1) / 2)
    return total


def _frequencies(size: int) -> Tensor:
    """ω of the samples of an axis, in radians, as the FFT orders them."""
    return 2 * math.pi * torch.fft.fftfreq(size, dtype=torch.float64)
