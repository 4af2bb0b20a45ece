import math

import dp_accounting
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.privacy.accounting import epsilon, gaussian
from murmur.privacy.accounting.calibrate import gaussian_noise_multiplier
from murmur.privacy.events import (
    ComposedEvent,
    DiscreteGaussianEvent,
    GaussianEvent,
    RandomizedResponseEvent,
    RepeatedEvent,
)


@pytest.mark.parametrize(("nominal", "true"), [(50, "165.9"), (60, "230.4"), (100, "591.7")])
def test_the_classical_constant_beyond_its_range(nominal, true):
    multiplier = gaussian.classical_constant(0.01) / nominal
    assert f"{gaussian.epsilon_of_mu(1 / multiplier, 0.01):.1f}" == true


@pytest.mark.parametrize("mu", [400.0, 1000.0, 14_000.0])
def test_next_to_no_noise_costs_next_to_all(mu):
    """The loss is N(μ²/2, μ²); where numbers underflow, that is no δ of 0."""
    event = GaussianEvent(1 / mu)
    spend = epsilon(event, 0.01)
    assert mu**2 / 2 < spend.epsilon <= spend.bounds["rdp"] < 1.03 * mu**2 / 2
    assert epsilon(event, 0.99).epsilon > mu**2 / 4


def test_golden_noise_for_one():
    assert f"{gaussian_noise_multiplier(1.0, 1e-5):.5f}" == "3.73063"
    assert f"{gaussian.classical_constant(1e-5):.5f}" == "4.84481"
    assert f"{gaussian.classical_constant(0.01):.5f}" == "3.10751"


@settings(max_examples=60, derandomize=True)
@given(st.floats(0.05, 50), st.floats(-30, -1.5))
def test_dp_accounting_agrees(multiplier, log_delta):
    delta = math.exp(log_delta)
    library = dp_accounting.get_epsilon_gaussian(multiplier, delta)
    ours = gaussian.epsilon_of_mu(1 / multiplier, delta)
    assert ours == pytest.approx(library, rel=1e-6, abs=1e-7)


@settings(max_examples=40, derandomize=True)
@given(st.floats(0.01, 200), st.floats(-40, -1), st.integers(1, 1000))
def test_the_smallest_noise_meets_the_target_and_no_less_does(target, log_delta, count):
    delta = math.exp(log_delta)
    multiplier = gaussian_noise_multiplier(target, delta, count)
    mu = math.sqrt(count) / multiplier
    assert gaussian.log_delta(target, mu) <= log_delta + 1e-9
    assert gaussian.log_delta(target, mu / (1 - 1e-6)) > log_delta


@settings(max_examples=100, derandomize=True)
@given(st.floats(0.05, 50), st.floats(-40, -1.5), st.integers(1, 50), st.booleans())
def test_what_costs_no_more_is_known_without_the_accountant(multiplier, log_delta, count, fine):
    level = math.exp(log_delta)
    one = GaussianEvent(multiplier)
    if fine:
        one = DiscreteGaussianEvent(multiplier * 2.0**21, 2.0**21)
    true = epsilon(RepeatedEvent(one, count), level).epsilon
    if 1e-3 < true < 690:
        assert gaussian.costs_at_most({one: count}, true * (1 + 1e-6) + 1e-6, level)
    assert not gaussian.costs_at_most({one: count}, true * (1 - 1e-6) - 1e-9, level)


def test_what_is_not_known_without_the_accountant():
    assert not gaussian.costs_at_most({GaussianEvent(1.0): 1}, 100.0, 0.0)
    assert not gaussian.costs_at_most({RandomizedResponseEvent(1.0, 2): 1}, 100.0, 1e-5)
    assert not gaussian.costs_at_most({DiscreteGaussianEvent(20.0, 10.0): 1}, 100.0, 1e-5)
    assert not gaussian.costs_at_most({GaussianEvent(0.02): 1}, 1e6, 1e-5)


def test_equal_releases_are_one_with_sensitivity_times_root_of_the_count():
    event = RepeatedEvent(GaussianEvent(6.0), 25)
    assert epsilon(event, 1e-5).epsilon == pytest.approx(gaussian.epsilon_of_mu(5 / 6.0, 1e-5))


def test_different_multipliers_compose_exactly():
    event = ComposedEvent((GaussianEvent(3.0), GaussianEvent(4.0)))
    exact = gaussian.epsilon_of_mu(1 / 2.4, 1e-5)
    assert epsilon(event, 1e-5).bounds["exact"] == pytest.approx(exact)


def test_dp_accounting_agrees_on_labels_beside_a_gaussian():
    from dp_accounting.pld import privacy_loss_distribution as pld

    from murmur.privacy.accounting.elementary_losses import report_probabilities

    event = ComposedEvent((RepeatedEvent(RandomizedResponseEvent(0.5, 10), 20), GaussianEvent(1.5)))
    labels = pld.from_randomized_response(10 * report_probabilities(0.5, 10)[1], 10)
    library = labels.self_compose(20).compose(pld.from_gaussian_mechanism(1.5))
    ours = epsilon(event, 1e-5)
    assert ours.method == "exact privacy-loss distribution"
    assert ours.epsilon == pytest.approx(library.get_epsilon_for_delta(1e-5), rel=1e-4)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_bad_targets_are_refused(bad):
    with pytest.raises(ValueError, match=r"^epsilon="):
        gaussian_noise_multiplier(bad, 1e-5)
    with pytest.raises(ValueError, match=r"^delta="):
        gaussian_noise_multiplier(1.0, 0.0)


def test_discrete_gaussian_vectors_cost_what_concentrated_dp_says():
    bounds = epsilon(RepeatedEvent(DiscreteGaussianEvent(20.0, 10.0), 30), 1e-5).bounds
    rho = 30 * (10 / 20) ** 2 / 2
    assert bounds["zcdp"] == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1e5)))
    assert bounds["rdp"] < bounds["zcdp"]
    assert "pld" not in bounds


def test_discrete_gaussian_scalars_cost_what_their_distribution_says():
    bounds = epsilon(RepeatedEvent(DiscreteGaussianEvent(20.0, 10, True), 30), 1e-5).bounds
    # On so fine a grid the discrete Gaussian is the continuous one.
    continuous = gaussian.epsilon_of_mu(math.sqrt(30) / 2.0, 1e-5)
    assert bounds["pld"] == pytest.approx(continuous, rel=1e-4)
