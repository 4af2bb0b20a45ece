import math

import numpy as np
import opendp.prelude as dp
import pytest
from scipy import stats

from murmur.privacy.events import LaplaceEvent
from murmur.privacy.mechanisms.discrete_laplace import DiscreteLaplace
from murmur.privacy.noise import NoiseGenerator


def closed_form(x, scale):
    ratio = math.exp(-1 / scale)
    return (1 - ratio) / (1 + ratio) * ratio ** np.abs(x)


@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0, 70.0])
def test_draws_follow_the_closed_form(scale):
    n = 1_000_000
    draws = DiscreteLaplace(scale, 1.0).privatize_integers(
        np.zeros(n, dtype=np.int64), NoiseGenerator.seeded("closed form", str(scale))
    )
    ends = max(1, int(scale * math.log(n * closed_form(0, scale) / 10)))
    x = np.arange(-ends, ends + 1)
    expected = n * closed_form(x, scale)
    beyond = (n - expected.sum()) / 2
    counts = np.bincount(np.clip(draws, -ends - 1, ends + 1) + ends + 1, minlength=2 * ends + 3)
    observed, wanted = counts, np.array([beyond, *expected, beyond])
    if beyond < 5:
        observed, wanted = counts[1:-1], expected * counts[1:-1].sum() / expected.sum()
    assert stats.chisquare(observed, wanted).pvalue > 1e-3


@pytest.mark.parametrize("scale", [1e4, 1e6, 2.0**40])
def test_wide_noise_is_laplace(scale):
    draws = DiscreteLaplace(scale, 1.0).privatize_integers(
        np.zeros(1_000_000, dtype=np.int64), NoiseGenerator.seeded("wide", int(scale))
    )
    assert stats.kstest(draws, stats.laplace(scale=scale).cdf).pvalue > 1e-3
    assert stats.chisquare(np.bincount(draws % 64, minlength=64)).pvalue > 1e-3


def test_agrees_with_opendp():
    dp.enable_features("contrib")
    for scale in (0.4, 6.0, 5e4):
        n = 10_000
        space = dp.vector_domain(dp.atom_domain(T=int), size=n), dp.l1_distance(T=int)
        theirs = np.array(dp.m.make_laplace(*space, scale=scale)([0] * n))
        ours = DiscreteLaplace(scale, 1.0).privatize_integers(
            np.zeros(n, dtype=np.int64), NoiseGenerator.seeded("opendp", int(scale))
        )
        # OpenDP cannot be seeded: one in a million runs fails by chance.
        assert stats.ks_2samp(ours, theirs).pvalue > 1e-6
        ends = int(2 * scale) + 1
        rows = [
            np.bincount(np.clip(d, -ends, ends) + ends, minlength=2 * ends + 1)
            for d in (ours, theirs)
        ]
        if ends < 30:
            assert stats.chi2_contingency(np.array(rows)).pvalue > 1e-6


def test_rounding_adds_one_step_per_dimension_to_the_sensitivity():
    on_grid = DiscreteLaplace(scale=1.0, sensitivity=2.0, grid=0.25)
    assert on_grid.event() == LaplaceEvent(0.5, sensitivity_steps=8)
    assert on_grid.epsilon == 2.0
    rounded = DiscreteLaplace(scale=1.0, sensitivity=2.0, grid=0.25, dimension=10)
    assert rounded.event() == LaplaceEvent(4 / 18, sensitivity_steps=18)
    assert rounded.epsilon == pytest.approx(4.5)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.3, 8.0])
def test_calibration_never_exceeds_its_target(epsilon):
    for sensitivity in (2.0, 0.1, 1 / 3):
        mechanism = DiscreteLaplace.calibrated(epsilon, sensitivity, 2.0**-20, dimension=10)
        assert epsilon * (1 - 1e-12) < mechanism.epsilon <= epsilon
        assert 1 / mechanism.event().noise_multiplier <= epsilon


def test_probabilities_of_neighbours_differ_by_epsilon_at_most():
    mechanism = DiscreteLaplace.calibrated(1.0, 3.0)
    x = np.arange(-60, 61)
    loss = np.log(closed_form(x, mechanism.scale) / closed_form(x - 3, mechanism.scale))
    assert np.abs(loss).max() == pytest.approx(mechanism.epsilon)


def test_real_vectors_come_back_as_noisy_multiples_of_the_grid():
    mechanism = DiscreteLaplace(scale=0.5, sensitivity=2.0, grid=2.0**-10, dimension=3)
    x = np.tile(np.array([0.1, -3.7, 12.0], dtype=np.float32), (100_000, 1))
    before = x.copy()
    released = mechanism.privatize(x, NoiseGenerator.seeded("grid"))
    assert released.shape == x.shape and np.array_equal(x, before)
    assert np.array_equal(released, np.rint(released * 2**10) / 2**10)
    assert np.abs(released - x).mean() == pytest.approx(0.5, rel=0.02)


def test_integers_stay_integers_so_that_sums_are_exact():
    k = np.arange(12, dtype=np.uint16).reshape(3, 4)
    mechanism = DiscreteLaplace(scale=3.0, sensitivity=1.0)
    released = mechanism.privatize_integers(k, NoiseGenerator.seeded("integers"))
    assert released.dtype == np.int64 and released.shape == (3, 4)
    assert np.array_equal(k, np.arange(12).reshape(3, 4)) and not np.array_equal(released, k)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": -1.0}, r"^scale=-1.0: "),
        ({"scale": 0.05}, r"^scale=0.05: .* finer grid"),
        ({"scale": math.nan}, r"^scale=nan: "),
        ({"sensitivity": 0.0}, r"^sensitivity=0.0: "),
        ({"grid": 3.0}, r"^grid=3.0: "),
        ({"dimension": -1}, r"^dimension=-1: "),
    ],
)
def test_bad_settings_are_refused_at_construction(change, message):
    with pytest.raises(ValueError, match=message):
        DiscreteLaplace(**{"scale": 1.0, "sensitivity": 1.0, "grid": 1.0} | change)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_calibration_refuses_what_is_no_privacy(epsilon):
    with pytest.raises(ValueError, match=f"^epsilon={epsilon}: "):
        DiscreteLaplace.calibrated(epsilon, 2.0)


@pytest.mark.parametrize("x", [math.nan, math.inf, 0.5])
def test_vectors_off_the_grid_or_not_finite_are_refused(x):
    with pytest.raises(ValueError, match=r"^(x|grid=1.0): "):
        DiscreteLaplace(1.0, 1.0).privatize(np.array([x]), NoiseGenerator.seeded(0))


def test_millions_of_draws_are_finite_and_near():
    for scale in (0.5, 1e6):
        draws = DiscreteLaplace(scale, 1.0).privatize(
            np.zeros(3_000_000), NoiseGenerator.seeded("finite", int(scale))
        )
        assert np.isfinite(draws).all() and np.abs(draws).max() < 40 * scale + 1
