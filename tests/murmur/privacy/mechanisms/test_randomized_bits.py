import math
from fractions import Fraction

import numpy as np
import opendp.prelude as dp
import pytest
from scipy import stats

from murmur.privacy.events import RandomizedBitsEvent
from murmur.privacy.mechanisms.randomized_bits import (
    BinaryRandomizedResponse,
    _flip_threshold,
    stochastic_bits,
)
from murmur.privacy.noise import NoiseGenerator


class Scripted:
    """First bytes, then what settles the undecided."""

    def __init__(self, first, then):
        self.first, self.then = first, then

    def uint8(self, n):
        assert n == len(self.first)
        return np.array(self.first, dtype=np.uint8)

    def uint64(self, n):
        assert n == len(self.then)
        return np.array(self.then, dtype=np.uint64)


# DPFL-BNN's golden ε₀.
@pytest.mark.parametrize(
    ("gamma", "epsilon"), [(0.1, 0.4055), (0.2, 0.8473), (0.3, 1.3863), (0.4, 2.1972)]
)
def test_epsilon_of_a_bit_is_the_papers(gamma, epsilon):
    mechanism = BinaryRandomizedResponse(gamma)
    assert mechanism.epsilon == pytest.approx(epsilon, abs=5e-5)
    flip = _flip_threshold(gamma)
    realized = math.log((2**64 - flip) / flip)
    assert realized == pytest.approx(mechanism.epsilon, rel=1e-14)


@pytest.mark.parametrize("gamma", [1e-6, 1.265e-4, 0.1, 0.3, 0.5 - 1e-15, math.nextafter(0.5, 0)])
def test_flip_probability_is_within_one_unit_and_never_too_small(gamma):
    excess = _flip_threshold(gamma) - (Fraction(1, 2) - Fraction(gamma)) * 2**64
    assert 0 <= excess < 1


def test_calibration_inverts_epsilon():
    for epsilon in (1e-3, 1.0, 8.0):
        found = BinaryRandomizedResponse.calibrated(epsilon).epsilon
        assert found == pytest.approx(epsilon, rel=1e-9)


def test_the_first_byte_decides_and_its_tie_is_settled_by_the_other_56_bits():
    mechanism = BinaryRandomizedResponse(0.1)
    threshold = _flip_threshold(0.1)
    first, rest = threshold >> 56, threshold % 2**56
    rng = Scripted([first - 1, first + 1, first, first], [(rest - 1) << 8 | 255, rest << 8])
    flips = mechanism.privatize(np.zeros(4, dtype=np.uint8), rng)
    assert flips.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("gamma", [0.001, 0.1, 0.4])
def test_flips_have_the_closed_forms_rate(gamma):
    n = 2_000_000
    bits = np.random.default_rng(2).integers(0, 2, n, dtype=np.uint8)
    mechanism = BinaryRandomizedResponse(gamma)
    flipped = mechanism.privatize(bits, NoiseGenerator.seeded("rate")) != bits
    for value in (0, 1):
        rate, count = flipped[bits == value].mean(), (bits == value).sum()
        assert abs(rate - (0.5 - gamma)) < 4 * 0.5 / math.sqrt(count)


def test_bits_of_one_byte_are_flipped_independently():
    bits = BinaryRandomizedResponse(0.2).privatize(
        np.zeros((500_000, 8), dtype=np.uint8), NoiseGenerator.seeded("bytes")
    )
    packed = np.packbits(bits)
    ones = np.bitwise_count(np.arange(256, dtype=np.uint8))
    expected = 0.3**ones * 0.7 ** (8 - ones)
    counts = np.bincount(packed, minlength=256)
    assert stats.chisquare(counts, counts.sum() * expected).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8])
def test_shape_and_dtype_are_kept_and_the_input_left_alone(dtype):
    bits = np.ones((5, 7), dtype=dtype)
    released = BinaryRandomizedResponse(0.1).privatize(bits, NoiseGenerator.seeded("shape"))
    assert released.shape == (5, 7) and released.dtype == dtype
    assert bits.all() and not released.all()


@pytest.mark.parametrize("bits", [np.array([0, 2], np.uint8), np.array([-1, 1]), np.array([0.0])])
def test_what_is_no_bit_is_refused(bits):
    with pytest.raises(ValueError, match=r"^bits"):
        BinaryRandomizedResponse(0.1).privatize(bits, NoiseGenerator.seeded(0))


@pytest.mark.parametrize("gamma", [0.0, 0.5, -0.1, math.nan])
def test_gamma_outside_its_range_is_refused(gamma):
    with pytest.raises(ValueError, match=f"^gamma={gamma}: "):
        BinaryRandomizedResponse(gamma)


def test_agrees_with_opendp():
    dp.enable_features("contrib")
    n = 20_000
    theirs = dp.m.make_randomized_response_bool(0.6)
    ours = BinaryRandomizedResponse(0.1).privatize(
        np.ones(n, dtype=np.bool_), NoiseGenerator.seeded("opendp")
    )
    kept = np.array([ours.sum(), sum(theirs(True) for _ in range(n))])
    # OpenDP cannot be seeded: one in a million runs fails by chance.
    assert stats.chi2_contingency(np.array([kept, n - kept])).pvalue > 1e-6


def test_stochastic_bits_have_mean_one_half_plus_gamma_w():
    w, n, gamma = np.array([-1.0, -0.3, 0.0, 1e-3, 0.8, 1.0]), 400_000, 0.2
    noise = NoiseGenerator.seeded("stochastic")
    bits = BinaryRandomizedResponse(gamma).privatize(
        stochastic_bits(np.tile(w, (n, 1)), noise), noise
    )
    assert bits.dtype == np.uint8 and bits.shape == (n, 6)
    assert np.abs(bits.mean(axis=0) - (0.5 + gamma * w)).max() < 4 * 0.5 / math.sqrt(n)


def test_stochastic_bits_never_contradict_a_certain_sign():
    w = np.repeat([-1.0, 1.0], 300_000)
    bits = stochastic_bits(w, NoiseGenerator.seeded("certain"))
    assert np.array_equal(bits, (w > 0).astype(np.uint8))


@pytest.mark.parametrize("w", [1.0000001, -2.0, math.nan, math.inf])
def test_numbers_outside_the_interval_are_refused(w):
    with pytest.raises(ValueError, match=r"^w: "):
        stochastic_bits(np.array([0.0, w]), NoiseGenerator.seeded(0))


def test_event_counts_all_bits_unless_told_otherwise():
    mechanism = BinaryRandomizedResponse(0.1)
    assert mechanism.event(81_958) == RandomizedBitsEvent(0.1, 81_958, 81_958)
    assert mechanism.event(81_958, 200) == RandomizedBitsEvent(0.1, 81_958, 200)
