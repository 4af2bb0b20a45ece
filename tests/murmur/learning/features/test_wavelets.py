"""The scattering transform against its properties and its filters' closed forms."""

import math

import numpy as np
import pytest
import torch

from murmur.learning.features.wavelets import (
    CHANNELS,
    ORIENTATIONS,
    lowpass,
    scatter,
    smoothing,
    transform,
    wavelets,
)

SIZE = (32, 32)


def signals(count=4):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, *SIZE, generator=generator)


def test_shapes_are_81_channels_at_every_fourth_pixel():
    assert CHANNELS == 81
    assert scatter(np.zeros((3, 1, 28, 28), np.float32)).shape == (3, 81, 7, 7)
    assert scatter(np.zeros((2, 1, 8, 8), np.float32)).shape == (2, 81, 2, 2)
    assert scatter(np.zeros((2, 3, 33, 30), np.float32)).shape == (2, 243, 8, 7)


def test_too_small_images_are_refused():
    with pytest.raises(ValueError, match="8×8"):
        scatter(np.zeros((1, 1, 4, 8), np.float32))


def test_wavelets_have_no_mean_and_peak_at_their_frequency():
    for scale in (0, 1):
        filters = wavelets(SIZE, scale)
        assert filters.shape == (ORIENTATIONS, *SIZE)
        assert filters[:, 0, 0].abs().max() < 1e-6
        # Orientation 0 runs along the columns: the peak is at (0, 3π/4 / 2^scale).
        row, column = np.unravel_index(int(filters[0].argmax()), SIZE)
        assert (row, column) == (0, round(3 / 8 * 32 / 2**scale))


def test_low_pass_is_the_gaussian_of_16_tenths_of_a_pixel():
    frequencies = 2 * math.pi * np.fft.fftfreq(32)
    expected = np.exp(-((1.6 * frequencies) ** 2) / 2)
    np.testing.assert_allclose(lowpass(32, 0).numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(smoothing(32, 0).sum(dim=1).numpy(), 1, atol=1e-6)


def test_frame_keeps_the_littlewood_paley_sum_below_one():
    power = torch.zeros(SIZE)
    for scale in (0, 1):
        squares = wavelets(SIZE, scale).square().sum(dim=0)
        power += (squares + torch.roll(squares.flip(0, 1), (1, 1), (0, 1))) / 2
    power += lowpass(32, 0).outer(lowpass(32, 0)).square()
    assert power.max() <= 1 + 1e-5
    assert power.max() > 0.999


def test_no_signal_gains_energy():
    x = signals()
    energy = 16 * transform(x).square().sum(dim=(1, 2, 3))
    assert torch.all(energy <= x.square().sum(dim=(1, 2)) * 1.001)


def test_moving_by_the_stride_moves_the_coefficients():
    x = signals()
    moved = transform(torch.roll(x, (4, -8), (1, 2)))
    torch.testing.assert_close(moved, torch.roll(transform(x), (1, -2), (2, 3)), atol=1e-5, rtol=0)


def test_coefficients_hardly_change_when_the_image_moves_by_a_pixel():
    rows = torch.arange(32.0)
    bump = torch.exp(-((rows - 15) ** 2) / 20)
    x = bump.outer(bump)[None]
    moved = torch.roll(x, 1, 2)
    change = (transform(moved) - transform(x)).norm() / transform(x).norm()
    assert change < (moved - x).norm() / x.norm()


def test_waves_excite_their_own_orientation():
    columns = torch.arange(32.0)
    wave = torch.cos(2 * math.pi * 12 / 32 * columns).expand(1, *SIZE)  # 3π/4 along the columns
    first = transform(wave)[0, 1 : 1 + ORIENTATIONS].mean(dim=(1, 2))
    assert first.argmax() == 0
    assert first[0] > 5 * first[ORIENTATIONS // 2]


def test_smoothing_is_the_filter_in_the_fourier_domain():
    x = signals(1)[0]
    low = lowpass(32, 0).outer(lowpass(32, 0)).float()
    expected = torch.fft.ifft2(torch.fft.fft2(x) * low).real[::4, ::4]
    found = smoothing(32, 0) @ x @ smoothing(32, 0).T
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
