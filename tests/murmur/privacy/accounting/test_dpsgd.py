import math
from itertools import pairwise

import dp_accounting
import numpy as np
import pytest

from murmur.privacy.accounting import Adjacency, epsilon, rdp
from murmur.privacy.accounting.calibrate import sampled_noise_multiplier
from murmur.privacy.events import (
    ComposedEvent,
    DiscreteGaussianEvent,
    GaussianEvent,
    LaplaceEvent,
    PoissonSampledEvent,
    RandomizedResponseEvent,
    RepeatedEvent,
)

DELTA = 1e-5


def library_event(rate, multiplier, steps):
    sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    return dp_accounting.SelfComposedDpEvent(sampled, steps)


def our_event(rate, multiplier, steps):
    return RepeatedEvent(PoissonSampledEvent(rate, GaussianEvent(multiplier)), steps)


@pytest.mark.parametrize(
    ("rate", "steps", "target", "golden"),
    [(0.1, 300, 3.0, 2.773), (0.05, 600, 4.5, 1.517), (250 / 6000, 480, 3.5, 1.448)],
)
def test_renyi_orders_alone_need_more_noise(rate, steps, target, golden):
    spend = epsilon(our_event(rate, golden, steps), DELTA)
    assert spend.bounds["rdp"] == pytest.approx(target, rel=5e-3)
    assert spend.epsilon < 0.97 * target


CASES = [(0.1, 2.773), (0.01, 0.8), (0.5, 0.3), (1e-5, 1.0)]


@pytest.mark.parametrize(("rate", "multiplier"), CASES)
def test_dp_accounting_agrees_on_integer_orders(rate, multiplier):
    orders = [2, 3, 8, 32]
    accountant = dp_accounting.rdp.RdpAccountant(orders)
    accountant.compose(library_event(rate, multiplier, 1))
    ours = [rdp.sampled_divergence(rate, multiplier, float(order)) for order in orders]
    # The library takes the logarithm of 1 + D(α−1), which costs it digits at small rates.
    assert ours == pytest.approx(list(accountant._rdp), rel=1e-6, abs=1e-14)


def test_divergence_grows_with_the_order_and_ends():
    for multiplier in (0.05, 0.9, 60.0):
        orders = np.exp(np.linspace(0.01, 9, 80))
        values = [rdp.sampled_divergence(0.02, multiplier, order) for order in orders]
        assert all(a <= b * (1 + 1e-9) for a, b in pairwise(values))
    assert rdp.sampled_divergence(0.1, 2.0, 1e6) == math.inf


@pytest.mark.parametrize(("rate", "multiplier", "steps"), [(0.1, 2.773, 300), (0.01, 0.7, 2000)])
def test_dp_accounting_agrees_on_epsilon(rate, multiplier, steps):
    bounds = epsilon(our_event(rate, multiplier, steps), DELTA).bounds
    by_rdp = dp_accounting.rdp.RdpAccountant(list(range(2, 65)))
    by_rdp.compose(library_event(rate, multiplier, steps))
    assert bounds["rdp"] == pytest.approx(by_rdp.get_epsilon(DELTA), rel=2e-3)
    by_pld = dp_accounting.pld.PLDAccountant()
    by_pld.compose(library_event(rate, multiplier, steps))
    assert bounds["pld"] == pytest.approx(by_pld.get_epsilon(DELTA), rel=1e-4)
    assert bounds["pld"] < bounds["rdp"]


def test_dp_accounting_agrees_on_sampled_noise_beside_other_releases():
    from dp_accounting.pld import privacy_loss_distribution as pld

    from murmur.privacy.accounting.elementary_losses import report_probabilities

    event = ComposedEvent(
        (
            our_event(0.1, 2.0, 100),
            RepeatedEvent(LaplaceEvent(2.0, 0), 5),
            RandomizedResponseEvent(0.5, 10),
            GaussianEvent(3.0),
        )
    )
    other = report_probabilities(0.5, 10)[1]
    library = (
        pld.from_gaussian_mechanism(2.0, sampling_prob=0.1)
        .self_compose(100)
        .compose(pld.from_laplace_mechanism(2.0).self_compose(5))
        .compose(pld.from_randomized_response(10 * other, 10))
        .compose(pld.from_gaussian_mechanism(3.0))
    )
    ours = epsilon(event, DELTA)
    assert ours.bounds["pld"] == pytest.approx(library.get_epsilon_for_delta(DELTA), rel=1e-3)


def test_sampling_everything_is_not_sampling():
    plain = RepeatedEvent(GaussianEvent(5.0), 10)
    assert epsilon(our_event(1.0, 5.0, 10), DELTA).epsilon == epsilon(plain, DELTA).epsilon


def test_sampling_gains_nothing_under_replace_one():
    sampled = epsilon(our_event(0.1, 2.0, 30), DELTA, adjacency=Adjacency.REPLACE_ONE)
    plain = epsilon(RepeatedEvent(GaussianEvent(2.0), 30), DELTA)
    assert sampled.epsilon == plain.epsilon


def test_pure_releases_on_a_sample_are_amplified():
    sampled = PoissonSampledEvent(0.1, RandomizedResponseEvent(1.0, 10))
    assert epsilon(sampled, 0.0).epsilon == pytest.approx(math.log1p(0.1 * math.expm1(1.0)))
    certain = PoissonSampledEvent(1.0, RandomizedResponseEvent(1.0, 10))
    assert epsilon(certain, 0.0).epsilon == pytest.approx(1.0)
    huge = PoissonSampledEvent(0.1, RandomizedResponseEvent(900.0, 10))
    assert epsilon(huge, 0.0).epsilon == pytest.approx(900 + math.log(0.1))


def test_several_releases_on_one_sample_are_not_amplified():
    once = PoissonSampledEvent(0.1, RepeatedEvent(GaussianEvent(2.0), 2))
    plain = RepeatedEvent(GaussianEvent(2.0), 2)
    assert epsilon(once, DELTA).epsilon == epsilon(plain, DELTA).epsilon


@pytest.mark.parametrize(
    ("target", "failure", "rate", "steps"),
    [(8.0, DELTA, 0.1, 400), (50.0, 0.01, 0.05, 350), (100.0, 0.01, 0.32, 500)],
)
def test_a_calibration_spends_its_budget_to_a_thousandth(target, failure, rate, steps):
    multiplier = sampled_noise_multiplier(target, failure, rate, steps, 1 << 18)
    noise = DiscreteGaussianEvent(multiplier * 2**18, 2**18)
    spent = epsilon(RepeatedEvent(PoissonSampledEvent(rate, noise), steps), failure).epsilon
    assert 0.999 * target < spent <= target


def test_a_grid_counts_as_gaussian_only_where_its_proof_reaches():
    event = RepeatedEvent(PoissonSampledEvent(0.5, DiscreteGaussianEvent(0.1 * 2**20, 2**20)), 1000)
    assert "pld" not in epsilon(event, DELTA).bounds and epsilon(event, DELTA).epsilon > 10_000
    continuous = RepeatedEvent(PoissonSampledEvent(0.5, GaussianEvent(0.1)), 1000)
    assert epsilon(continuous, DELTA).bounds["pld"] > 10_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0.0, DELTA, 0.1, 10), "^epsilon=0.0: "),
        ((3.0, 1.0, 0.1, 10), "^delta=1.0: "),
        ((3.0, DELTA, 1.5, 10), "^rate=1.5: "),
        ((3.0, DELTA, 0.1, 0), "^steps=0: "),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        sampled_noise_multiplier(*settings, 1 << 18)
