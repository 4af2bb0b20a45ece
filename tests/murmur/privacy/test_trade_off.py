"""A Gaussian's ε is found from below, closely; and nothing where there is nothing."""

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
    assert 0.6 * true < gaussian_fit(x, other, DELTA) <= true
    assert gaussian_fit(other, x, DELTA) == pytest.approx(gaussian_fit(x, other, DELTA), rel=0.2)


@pytest.mark.parametrize("mu", [0.5, 6.0, 60.0])
def test_moments_of_normal_outputs_show_nearly_all_of_any_epsilon(mu):
    rng = np.random.default_rng(3)
    x, other = rng.normal(7 + mu, 1, 5_000), rng.normal(7, 1, 5_000)
    true = epsilon_of_mu(mu, DELTA)
    assert 0.75 * true < normal_fit(x, other, DELTA) <= true


@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_noise_that_both_outputs_share_costs_nothing_of_the_distance(mu):
    noise = np.random.default_rng(3).normal(0, 1, 1_000)
    true = epsilon_of_mu(mu, DELTA)
    assert 0.85 * true < normal_fit(noise + mu, noise, DELTA) <= true


def test_normal_outputs_without_any_noise_are_told_apart_altogether():
    assert normal_fit([1, 1, 1, 1], [0, 0, 0, 0], DELTA) == np.inf
    assert normal_fit([1, 1, 1, 1], [1, 1, 1, 1], DELTA) == 0


FITS = pytest.mark.parametrize("fit", [gaussian_fit, normal_fit])


@FITS
def test_equal_outputs_show_nothing(fit):
    rng = np.random.default_rng(4)
    assert fit(rng.normal(size=2000), rng.normal(size=2000), DELTA) == 0


@FITS
def test_the_bound_is_wrong_no_more_often_than_it_says(fit):
    rng, true = np.random.default_rng(5), epsilon_of_mu(1.0, DELTA)
    wrong = sum(
        fit(rng.normal(1, 1, 200), rng.normal(0, 1, 200), DELTA, 0.9) > true for _ in range(300)
    )
    assert wrong <= 30


@FITS
@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_a_delta_at_which_a_gaussian_has_no_epsilon_is_refused(fit, delta):
    with pytest.raises(ValueError, match="delta="):
        fit([0, 1, 2, 3], [0, 1, 2, 3], delta)
