"""A Gaussian's ε is in its interval, which is close; and nothing where there is nothing."""

import numpy as np
import pytest

from murmur.privacy.accounting.gaussian import epsilon_of_mu
from murmur.privacy.audit import gaussian_fit, normal_fit

DELTA = 1e-5


@pytest.mark.parametrize("mu", [0.5, 2.0, 6.0])
def test_the_fit_of_a_gaussian_is_a_close_lower_bound(mu):
    rng = np.random.default_rng(3)
    x, other = rng.normal(mu, 1, 20_000), rng.normal(0, 1, 20_000)
    true = epsilon_of_mu(mu, DELTA)
    found = gaussian_fit(x, other, DELTA)
    assert 0.6 * true < found.low <= true <= found.high
    assert found.low < found.estimate < found.high
    assert gaussian_fit(other, x, DELTA).low == pytest.approx(found.low, rel=0.2)


@pytest.mark.parametrize("mu", [0.5, 6.0, 60.0])
def test_moments_of_normal_outputs_show_nearly_all_of_any_epsilon(mu):
    rng = np.random.default_rng(3)
    x, other = rng.normal(7 + mu, 1, 5_000), rng.normal(7, 1, 5_000)
    true = epsilon_of_mu(mu, DELTA)
    low, estimate, high = normal_fit(x, other, DELTA)
    assert 0.75 * true < low <= true <= high < 1.35 * true
    assert low < estimate < high


@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_noise_that_both_outputs_share_costs_nothing_of_the_distance(mu):
    noise = np.random.default_rng(3).normal(0, 1, 1_000)
    true = epsilon_of_mu(mu, DELTA)
    found = normal_fit(noise + mu, noise, DELTA, shared=True)
    assert 0.85 * true < found.low <= true <= found.high < 1.15 * true


def test_normal_outputs_without_any_noise_are_told_apart_altogether():
    assert normal_fit([1, 1, 1, 1], [0, 0, 0, 0], DELTA) == (np.inf, np.inf, np.inf)
    assert normal_fit([1, 1, 1, 1], [1, 1, 1, 1], DELTA) == (0, 0, 0)


FITS = pytest.mark.parametrize("fit", [gaussian_fit, normal_fit])


@FITS
def test_equal_outputs_show_nothing(fit):
    rng = np.random.default_rng(4)
    assert fit(rng.normal(size=2000), rng.normal(size=2000), DELTA).low == 0


@FITS
def test_the_interval_is_wrong_no_more_often_than_it_says(fit):
    rng, true = np.random.default_rng(5), epsilon_of_mu(1.0, DELTA)
    wrong = 0
    for _ in range(300):
        found = fit(rng.normal(1, 1, 200), rng.normal(0, 1, 200), DELTA, 0.9)
        wrong += not found.low <= true <= found.high
    assert wrong <= 30


@FITS
def test_few_runs_and_many_agree_within_their_intervals(fit):
    rng = np.random.default_rng(6)
    for mu in (0.3, 1.0, 3.0):
        few, many = (
            fit(rng.normal(mu, 1, runs), rng.normal(0, 1, runs), DELTA) for runs in (200, 2_000)
        )
        assert few.low <= many.estimate <= few.high
        assert many.high - many.low < few.high - few.low


@FITS
@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_a_delta_at_which_a_gaussian_has_no_epsilon_is_refused(fit, delta):
    with pytest.raises(ValueError, match="delta="):
        fit([0, 1, 2, 3], [0, 1, 2, 3], delta)
