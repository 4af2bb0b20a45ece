"""Feature maps as PyTorch modules, for models that leave the project (ONNX, ``load_model``).

Each computes what its map in ``maps`` computes, by operations that the Open Neural Network Exchange
format has: real matrix products in place of Fourier transforms, comparisons in place of indices.
Maps that need more (hashed words, published encoders) have no module.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from murmur.learning.features import wavelets
from murmur.learning.features.bins import Bins

Complex = tuple[Tensor, Tensor]  # real and imaginary parts


class Scattering(nn.Module):
    """The scattering transform of images of one shape (``wavelets.scatter``).

    Args:
        shape: (C, H, W) of the images.
        windows: means over this many overlapping windows a side; None: the transform as it is.
    """

    def __init__(self, shape: tuple[int, int, int], windows: int | None) -> None:
        super().__init__()
        _, height, width = shape
        self.border = wavelets.borders(height, width)
        left, right, top, bottom = self.border
        size = (height + top + bottom, width + left + right)
        half = (size[0] // 2, size[1] // 2)
        self.rows, self.columns = height // wavelets.STRIDE, width // wavelets.STRIDE
        self.windows = windows
        self.whole = _Fourier(size)
        self.halved = _Fourier(half)
        self.fine: Tensor
        self.coarse: Tensor
        self.register_buffer("fine", wavelets.wavelets(size, 0), persistent=False)
        self.register_buffer("coarse", wavelets.wavelets(size, 1), persistent=False)
        for scale, (high, wide) in enumerate((size, half)):
            rows = wavelets.smoothing(high, scale)
            columns = wavelets.smoothing(wide, scale).T.contiguous()
            self.register_buffer(f"rows_{scale}", rows, persistent=False)
            self.register_buffer(f"columns_{scale}", columns, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Coefficients (N, D) of ``images`` (N, C, H, W)."""
        count, channels, height, width = images.shape
        flat = images.reshape(count * channels, 1, height, width)
        signal = nn.functional.pad(flat, self.border, mode="reflect")
        spectrum = self.whole.forward_real(signal)
        fine = _modulus(self.whole.inverse(_times(spectrum, self.fine)))
        coarse = _modulus(self.halved.inverse(_folded(_times(spectrum, self.coarse))))
        second = self.whole.forward_real(fine)
        paths = []
        for orientation in range(wavelets.ORIENTATIONS):
            real, imaginary = (part[:, orientation : orientation + 1] for part in second)
            folded = _folded(_times((real, imaginary), self.coarse))
            paths.append(_modulus(self.halved.inverse(folded)))
        smooth = [self._smooth(signal, 0), self._smooth(fine, 0), self._smooth(coarse, 1)]
        smooth.append(self._smooth(torch.cat(paths, dim=1), 1))
        found = torch.cat(smooth, dim=1)[:, :, 1 : self.rows + 1, 1 : self.columns + 1]
        maps = found.reshape(count, channels * wavelets.CHANNELS, self.rows, self.columns)
        if self.windows is not None:
            maps = _windowed(maps, self.windows)
        return maps.flatten(1)

    def _smooth(self, signal: Tensor, scale: int) -> Tensor:
        """Low-pass values of ``signal`` at every fourth pixel of the images."""
        rows = getattr(self, f"rows_{scale}")
        columns = getattr(self, f"columns_{scale}")
        return rows @ signal @ columns


class _Fourier(nn.Module):
    """Discrete Fourier transforms of one size (H, W), as products of real matrices."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.pixels = size[0] * size[1]
        self.cos_h: Tensor
        self.sin_h: Tensor
        self.cos_w: Tensor
        self.sin_w: Tensor
        for axis, length in zip(("h", "w"), size, strict=True):
            places = torch.arange(length, dtype=torch.float64)
            angles = 2 * math.pi * torch.outer(places, places) / length
            self.register_buffer(f"cos_{axis}", angles.cos().float(), persistent=False)
            self.register_buffer(f"sin_{axis}", angles.sin().float(), persistent=False)

    def forward_real(self, signal: Tensor) -> Complex:
        """The spectrum of a real signal (…, H, W)."""
        return self._transform((signal, torch.zeros_like(signal)), -1.0)

    def inverse(self, spectrum: Complex) -> Complex:
        """The signal of a spectrum (…, H, W)."""
        real, imaginary = self._transform(spectrum, 1.0)
        return real / self.pixels, imaginary / self.pixels

    def _transform(self, values: Complex, sign: float) -> Complex:
        """Sums over e^(sign·i·angle) along both axes; the matrices are symmetric."""
        real, imaginary = values
        cos, sin = self.cos_w, self.sin_w * sign
        real, imaginary = real @ cos - imaginary @ sin, real @ sin + imaginary @ cos
        cos, sin = self.cos_h, self.sin_h * sign
        return cos @ real - sin @ imaginary, sin @ real + cos @ imaginary


def _times(spectrum: Complex, filters: Tensor) -> Complex:
    """The spectrum (N, 1, H, W) behind each of the real ``filters`` (8, H, W)."""
    return spectrum[0] * filters, spectrum[1] * filters


def _folded(spectrum: Complex) -> Complex:
    """The spectrum of the signal at every second pixel: aliases fold onto each other."""
    return _every_second(spectrum[0]), _every_second(spectrum[1])


def _every_second(part: Tensor) -> Tensor:
    height, width = part.shape[-2] // 2, part.shape[-1] // 2
    top, bottom = part[..., :height, :], part[..., height:, :]
    rows = top + bottom
    return (rows[..., :width] + rows[..., width:]) / 4


def _modulus(values: Complex) -> Tensor:
    return (values[0].square() + values[1].square()).sqrt()


def _windowed(maps: Tensor, count: int) -> Tensor:
    """Means over count² windows (N, C·count²) of ``maps`` (N, C, H, W)."""
    means = []
    for rows in wavelets.cuts(maps.shape[2], count):
        for columns in wavelets.cuts(maps.shape[3], count):
            means.append(maps[:, :, rows, columns].mean(dim=(2, 3)))
    return torch.cat(means, dim=1)


class BinsOfColumns(nn.Module):
    """A table's rows as bins of a public schema (``bins.Bins``)."""

    def __init__(self, bins: Bins) -> None:
        super().__init__()
        self.bins = bins

    def forward(self, rows: Tensor) -> Tensor:
        """Vectors (N, width) of unit length, of rows (N, columns, 1, 1)."""
        numbers = rows.flatten(1).double()
        places = [self._places(column, numbers[:, column]) for column in range(self.columns)]
        sizes = [column.size for column in self.bins.columns]
        for a, b in self.bins.crossed:
            places.append(places[a] * sizes[b] + places[b])
            sizes.append(sizes[a] * sizes[b])
        value = 1 / math.sqrt(len(places))
        ones = []
        for place, size in zip(places, sizes, strict=True):
            ones.append((place[:, None] == torch.arange(size).double()).float() * value)
        return torch.cat(ones, dim=1)

    @property
    def columns(self) -> int:
        """How many columns the schema has."""
        return len(self.bins.columns)

    def _places(self, column: int, numbers: Tensor) -> Tensor:
        """The bin of each number of one column, as ``Column.places`` finds it."""
        told = self.bins.columns[column]
        if told.values:
            count = len(told.values)
            known = (numbers >= 0) & (numbers < count) & (numbers == numbers.floor())
            return torch.where(known, numbers, torch.full_like(numbers, count))
        missing = torch.isnan(numbers)
        fraction = (numbers - told.low) / (told.high - told.low)
        fraction = torch.where(missing, torch.full_like(fraction, -1.0), fraction)
        inside = (fraction * told.bins).floor().clamp(0, told.bins - 1)
        below = torch.where(fraction < 0, torch.full_like(inside, told.bins), inside)
        return torch.where(fraction > 1, torch.full_like(inside, told.bins + 1), below)


class Projection(nn.Module):
    """Components that were fitted on public images (``components.Components.project``).

    Args:
        mean: (D,).
        projection: (d, D).
    """

    def __init__(self, mean: NDArray[np.float32], projection: NDArray[np.float32]) -> None:
        super().__init__()
        self.mean: Tensor
        self.axes: Tensor
        self.register_buffer("mean", torch.from_numpy(mean.copy()))
        self.register_buffer("axes", torch.from_numpy(projection.T.copy()))

    def forward(self, rows: Tensor) -> Tensor:
        """Features (N, d) of unit length, of ``rows`` (N, D)."""
        projected = (rows.flatten(1) - self.mean) @ self.axes
        lengths = projected.square().sum(dim=1, keepdim=True).sqrt()
        return projected / lengths.clamp(min=1e-12)


class Sequence4D(nn.Sequential):
    """Feature modules in order; the last one's rows (N, d) leave as (N, d, 1, 1)."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(*modules)

    def forward(self, images: Tensor) -> Tensor:
        """Features (N, d, 1, 1) of ``images`` (N, C, H, W)."""
        return super().forward(images)[:, :, None, None]
