"""One run with many canaries: the published formulas, close to known ε, and never above them."""

import numpy as np
import pytest
from scipy import stats

from murmur.privacy.accounting import epsilon
from murmur.privacy.accounting.gaussian import epsilon_of_mu
from murmur.privacy.audit import CanaryAudit, normal_fit, one_run, one_run_gaussian, p_value
from murmur.privacy.mechanisms.randomized_bits import BinaryRandomizedResponse
from murmur.privacy.noise import NoiseGenerator

DELTA = 1e-5


def gaussian_canaries(mu, count=1000, seed=0):
    rng = np.random.default_rng(seed)
    inside = rng.random(count) < 0.5
    return rng.normal(size=count) + mu * inside, inside


def spaced_normals(shift, count=10_000):
    """``count`` scores in and out, at the quantiles of their laws."""
    quantiles = stats.norm.ppf((np.arange(count) + 0.5) / count)
    scores = np.concatenate([quantiles + shift, quantiles])
    return scores, np.arange(2 * count) < count


@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "eps", "delta"),
    [
        (100, 100, 80, 1.0, 0.0),
        (100, 50, 45, 1.5, 1e-5),
        (1000, 200, 180, 2.0, 1e-3),
        (9, 4, 0, 1, 0),
    ],
)
def test_p_values_are_those_of_the_theorem_of_steinke_et_al(canaries, guesses, right, eps, delta):
    each = 1 / (1 + np.exp(-eps))
    mass = [stats.binom.pmf(k, guesses, each) for k in range(guesses + 1)]
    beta = sum(mass[right:])
    alphas = [sum(mass[right - i : right]) / i for i in range(1, right + 1)]
    expected = min(1.0, beta + 2 * canaries * delta * max(alphas, default=0.0))
    assert p_value(canaries, guesses, right, eps, delta) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("guessed", "shift", "theirs"),
    # jax_privacy 2.0.0: auditing._epsilon_one_run and _epsilon_one_run_fdp at significance
    # 0.001 / 4, δ = 1e-5, for the best of the four numbers of guesses.
    [
        (one_run, 2, 1.452034),
        (one_run_gaussian, 2, 4.599032),
        (one_run, 4, 2.229592),
        (one_run_gaussian, 4, 9.117524),
    ],
)
def test_bounds_are_those_of_jax_privacy_on_the_same_scores(guessed, shift, theirs):
    scores, inside = spaced_normals(shift)
    assert guessed(scores, inside, DELTA) == pytest.approx(theirs, abs=2e-5)


@pytest.mark.parametrize("mu", [0.5, 2.0, 4.0])
def test_a_gaussian_s_epsilon_is_found_from_below_and_more_of_it_if_that_is_known(mu):
    scores, inside = gaussian_canaries(mu)
    found = one_run(scores, inside, DELTA), one_run_gaussian(scores, inside, DELTA)
    assert 0 <= found[0] <= found[1] <= epsilon_of_mu(mu, DELTA)
    assert found[1] > 0.1 * epsilon_of_mu(mu, DELTA)


def test_randomised_response_shows_nearly_all_of_its_epsilon():
    mechanism = BinaryRandomizedResponse(0.2)
    true = epsilon(mechanism.event(1), 0.0).epsilon
    inside = np.random.default_rng(1).random(20_000) < 0.5
    bits = mechanism.privatize(inside.astype(np.uint8), NoiseGenerator.seeded("one run"))
    assert 0.9 * true < one_run(bits, inside, 0.0) <= true


def test_correct_mechanisms_are_not_accused_by_any_of_many_audits():
    true, alarms, missed, estimates = epsilon_of_mu(1.0, DELTA), 0, 0, []
    for seed in range(200):
        scores, inside = gaussian_canaries(1.0, 64, seed)
        low, estimate, high = normal_fit(scores[inside], scores[~inside], DELTA)
        shown = one_run(scores, inside, DELTA), one_run_gaussian(scores, inside, DELTA), low
        alarms, missed = alarms + (max(shown) > true), missed + (high < true)
        estimates.append(estimate)
    assert max(alarms, missed) <= 2
    assert np.median(estimates) == pytest.approx(true, rel=0.15)


def test_scores_without_noise_show_what_so_many_coins_can_and_no_more():
    inside = np.arange(64) % 2 == 0
    found = CanaryAudit.of(inside.astype(float), inside, DELTA)
    assert found.estimate == np.inf
    assert 1 < found.at_least < 3


def test_scores_that_know_nothing_show_nothing():
    scores, inside = gaussian_canaries(0.0)
    assert one_run(scores, inside, DELTA) == one_run_gaussian(scores, inside, DELTA) == 0


@pytest.mark.parametrize(
    ("scores", "inside", "delta", "said"),
    [
        (np.zeros(15), np.zeros(15), 0.1, "16 canaries or more"),
        (np.full(16, np.nan), np.zeros(16), 0.1, "NaN"),
        (np.zeros(16), np.zeros(16), 1.0, "delta=1.0"),
    ],
)
def test_what_cannot_be_audited_is_refused(scores, inside, delta, said):
    for bound in (one_run, one_run_gaussian):
        with pytest.raises(ValueError, match=said):
            bound(scores, inside, delta)
